"""What all uses of `format("antiphon")` share about options: their names, typed access, and where the cluster is.

Names are those of Spark's Kafka source where it has them. Spark hands all options over with lower-case names, its own
(`checkpointLocation`, `queryName`) among them. An option that nobody knows, or that does not apply to what is being done, is
refused with the name of the right one.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from antiphon.client.access import Access, Addresses
from antiphon.errors import InvalidRequestError
from antiphon.spark.servers import SETTINGS, access_in, access_options

COMMON: Final = ("servers", "topic", "table", "timeoutMs", *SETTINGS.values())
READ: Final = (
    "topicPattern", "shards", "mode", "format", "encoding", "tombstones", "columns", "includeHeaders",
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "asOfOffset", "asOfTimestamp",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "key", "keyPrefix", "keyEncoding", "keyFormat", "minPartitions", "maxPartitions", "maxRecordsPerPartition",
    "failOnDataLoss", "isolation", "readFrom", "retries", "fetchBytes",
    "onCorrupt", "deadLetters",
)  # fmt: skip
WRITE: Final = ("protocol", "txnId", "txnVersion", "batchRows", "batchBytes", "compression")
_SPARKS_OWN: Final = ("checkpointlocation", "queryname", "outputmode")

# What people who come from other connectors try first.
_HINTS: Final = {
    "username": "user",
    "passwordfile": "password, or ANTIPHON_PASSWORD_FILE in the environment",
    "kafka.security.protocol": "tls, user and password",
    "kafka.sasl.jaas.config": "user and password, or token",
    "kafka.ssl.truststore.location": "tls, a PEM file of authorities",
    "kafka.ssl.keystore.location": "tlsCertificate and tlsKey, PEM files",
    "kafka.bootstrap.servers": "servers (native addresses, not the Kafka port)",
    "bootstrap.servers": "servers (native addresses, not the Kafka port)",
    "bootstrapservers": "servers (native addresses, not the Kafka port)",
    "bootstrap": "servers",
    "service.url": "servers",
    "subscribe": "topic",
    "topics": "topic (several are separated by commas)",
    "log": "topic",
    "subscribepattern": "topicPattern",
    "logpattern": "topicPattern",
    "topicspattern": "topicPattern",
    "assign": 'shards, such as {"flights": [0, 1]}',
    "path": "topic or table",
    "kafka.isolation.level": "isolation",
    "kafka.group.id": "nothing: progress is in the query's checkpoint",
    "groupidprefix": "nothing: progress is in the query's checkpoint",
    "fetchoffset.numretries": "retries",
    "fetchoffset.retryintervalms": "nothing: pauses between tries grow by themselves",
    "kafkaconsumer.polltimeoutms": "timeoutMs",
    "kafka.request.timeout.ms": "timeoutMs",
    "kafka.max.partition.fetch.bytes": "fetchBytes",
    "verifychecksums": "nothing: every batch is checked",
    "txnappid": "txnId",
    "versionasof": "asOfOffset",
    "timestampasof": "asOfTimestamp",
    "readchangefeed": "format=cdf",
    "readchangedata": "format=cdf",
    "startingversion": "startingOffsets",
    "endingversion": "endingOffsets",
}

TIMEOUT_MS_DEFAULT: Final = 60_000
_PATTERN_CHARACTERS_MAX: Final = 1_000
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER: Final = re.compile(r"[+-]?\d+")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_DURATION: Final = re.compile(r"(\d{1,15})\s*([a-z]*)")


@dataclass(frozen=True)
class Target:
    """What every use needs: where the cluster is and which topics, or which table.

    `pattern`: topics whose whole name matches it, instead of `names`. `shards`: of these topics only these shards are read.
    """

    servers: Addresses
    names: tuple[str, ...]
    is_table: bool
    timeout_ms: int
    pattern: str | None = None
    shards: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The one table or topic, for uses that take just one."""
        return self.names[0] if self.names else f"topics like {self.pattern}"


class Options:
    """Typed access to raw options, with errors that name the option."""

    def __init__(
        self, raw: Mapping[str, str], known: tuple[str, ...], other: tuple[str, ...], use: str
    ) -> None:
        """`known` may be given, `other` belong to another use; `use` names this one. Raises InvalidRequestError."""
        self._raw = {str(name).lower(): str(value) for name, value in raw.items()}
        self._names = {name.lower(): name for name in known}
        elsewhere = {name.lower(): name for name in other}
        for name in self._raw:
            if name not in self._names and name not in _SPARKS_OWN:
                raise InvalidRequestError(_unknown(name, self._names, elsewhere, use))

    def text(self, name: str) -> str | None:
        """The value without blanks around it; None where it was not given."""
        value = self._raw.get(name.lower())
        return None if value is None else value.strip()

    def exact(self, name: str) -> str | None:
        """The value as it was given, blanks and all; None where it was not given."""
        return self._raw.get(name.lower())

    def time_ms(self, name: str, *, round_up: bool) -> int | None:
        """A time in ms since 1970: a number, or text as ISO 8601 and Spark write it, in UTC where it names no zone.

        `round_up`: to the next ms, where text is finer than that; else to the one before.
        """
        value = self.text(name)
        if value is None:
            return None
        if _NUMBER.fullmatch(value):
            return self.number(name, None, low=0)
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRequestError(
                f"option {name} has to be a time, ms since 1970 or text such as 2026-03-01T12:00:00Z, not {value!r}"
            ) from None
        since = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - _EPOCH
        if since < timedelta():
            raise InvalidRequestError(f"option {name}={value!r} is before 1970")
        return -(-since // _MS) if round_up else since // _MS

    def number(self, name: str, default: int | None, low: int = 1, high: int = 2**63 - 1) -> int | None:
        """An integer within bounds."""
        value = self.text(name)
        if value is None:
            return default
        try:
            found = int(value)
        except ValueError:
            raise InvalidRequestError(f"option {name} has to be a whole number, not {value!r}") from None
        if not low <= found <= high:
            raise InvalidRequestError(f"option {name}={found} is not within {low}..{high}")
        return found

    def duration_ms(self, name: str, default_ms: int) -> int:
        """A time as Spark writes it: 500ms, 30s, 15m, 1h; a bare number is in ms."""
        value = self.text(name)
        if value is None:
            return default_ms
        found = _DURATION.fullmatch(value.lower())
        unit_ms = _UNITS_MS.get((found.group(2) or "ms") if found else "")
        if found is None or unit_ms is None:
            raise InvalidRequestError(
                f"option {name} has to be a time such as 500ms, 30s or 15m, not {value!r}"
            )
        return int(found.group(1)) * unit_ms

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean, written true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in {"true", "false"}:
            raise InvalidRequestError(f"option {name} has to be true or false, not {value!r}")
        return value.lower() == "true"

    def choice(self, name: str, default: str, choices: Mapping[str, str] | tuple[str, ...]) -> str:
        """One of a few words."""
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise InvalidRequestError(f"option {name}={value!r} is unknown; there is {', '.join(choices)}")
        return choices[value] if isinstance(choices, Mapping) else value

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names separated by commas, none of them twice; None where the option was not given."""
        value = self.text(name)
        if value is None:
            return None
        found = tuple(item.strip() for item in value.split(",") if item.strip())
        if not found:
            raise InvalidRequestError(f"the option {name} is empty")
        if len(set(found)) != len(found):
            raise InvalidRequestError(f"option {name} names something twice: {value}")
        return found

    def target(self, *, several: bool) -> Target:
        """Servers and topics or table. `several`: a read, which takes a pattern and a choice of shards, too."""
        topics, table = self.names("topic"), self.text("table")
        pattern = self._pattern() if several else None
        shards = self._shards() if several else {}
        given = [what for what in (topics, table, pattern) if what is not None]
        if not given and shards:
            topics = tuple(shards)
        elif len(given) != 1:
            raise InvalidRequestError(
                'give either option("topic", ...) or option("table", ...)'
                + (' or option("topicPattern", ...)' if several else "")
            )
        if table == "":
            raise InvalidRequestError("the option table is empty")
        names = (table,) if table else topics or ()
        if len(names) > 1 and not several:
            raise InvalidRequestError(f"a write goes to one topic, not to {len(names)}: {', '.join(names)}")
        if shards and set(shards) != set(names):
            raise InvalidRequestError(
                f"option shards names {', '.join(shards)}, but what is read is {', '.join(names) or pattern}"
            )
        timeout_ms = self.number("timeoutMs", TIMEOUT_MS_DEFAULT) or TIMEOUT_MS_DEFAULT
        servers = Addresses(parse_servers(self.text("servers")), self.access())
        return Target(servers, names, table is not None, timeout_ms, pattern, shards)

    def access(self) -> Access | None:
        """How to get into the cluster, where options say so. Raises InvalidRequestError without what they say."""
        return access_in(self._raw)

    def _pattern(self) -> str | None:
        pattern = self.text("topicPattern")
        if pattern is None:
            return None
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidRequestError(
                f"option topicPattern={pattern!r} is no regular expression: {error}"
            ) from None
        if not pattern or len(pattern) > _PATTERN_CHARACTERS_MAX:
            raise InvalidRequestError(f"option topicPattern has 1 to {_PATTERN_CHARACTERS_MAX} characters")
        return pattern

    def _shards(self) -> dict[str, tuple[int, ...]]:
        text = self.text("shards")
        if text is None:
            return {}
        wrong = InvalidRequestError(
            f'option shards has to be JSON such as {{"flights": [0, 1]}}, not {text!r}'
        )
        try:
            loaded: Any = json.loads(text)
            found = {str(topic): tuple(shards) for topic, shards in loaded.items()}
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise wrong from None
        for shards in found.values():
            is_number = all(type(shard) is int and shard >= 0 for shard in shards)
            if not shards or not is_number or len(set(shards)) != len(shards):
                raise wrong
        if not found:
            raise wrong
        return found


def parse_servers(text: str | None) -> Addresses:
    """`host:port[,host:port...]` as pairs, with the access that comes with it; raises InvalidRequestError."""
    if not text:
        raise InvalidRequestError(
            'give option("servers", "HOST:PORT[,HOST:PORT...]"), native addresses of the cluster'
        )
    found = []
    for item in text.split(","):
        host, _, port = item.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidRequestError(f"option servers: {item.strip()!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return Addresses(found, access_in(access_options(text)))


def refuse(options: Options, use: str, names: tuple[str, ...]) -> None:
    """Raise InvalidRequestError where one of these options was given."""
    for name in names:
        if options.text(name) is not None:
            raise InvalidRequestError(f"option {name} does not apply to {use}")


def _unknown(name: str, known: dict[str, str], elsewhere: dict[str, str], use: str) -> str:
    if name in _HINTS:
        return f"option {name!r} is unknown to antiphon; use {_HINTS[name]}"
    if name in elsewhere:
        return f"option {elsewhere[name]} does not apply to {use}"
    near = difflib.get_close_matches(name.removeprefix("kafka."), list(known), n=1, cutoff=0.5)
    if near:
        return f"option {name!r} is unknown; did you mean {known[near[0]]}?"
    return f"option {name!r} is unknown; there is {', '.join(known.values())}"
