"""Options of `format("antiphon")`: parsed once, checked whole, refused with the name of the right one.

Names are those of Spark's Kafka source where it has them. Spark hands all options over with lower-case names, its own
(`checkpointLocation`, `queryName`) among them.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from antiphon.errors import InvalidRequestError

EARLIEST: Final = -2  # as in JSON offsets of Spark's Kafka source
LATEST: Final = -1

# Lower-case name -> name as documented.
COMMON: Final = ("servers", "topic", "table", "timeoutMs")
READ: Final = (
    "mode", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger",
    "minPartitions", "failOnDataLoss", "includeHeaders", "isolation", "asOfOffset", "asOfTimestamp", "fetchBytes",
)  # fmt: skip
WRITE: Final = ("protocol", "txnId", "txnVersion", "batchRows", "batchBytes", "compression")
_SPARKS_OWN: Final = ("checkpointlocation", "queryname", "outputmode")

# What people who come from other connectors try first.
_HINTS: Final = {
    "kafka.bootstrap.servers": "servers (native addresses, not the Kafka port)",
    "bootstrap.servers": "servers (native addresses, not the Kafka port)",
    "bootstrap": "servers",
    "subscribe": "topic",
    "topics": "topic (several are separated by commas)",
    "subscribepattern": "topic (several are separated by commas; there is no pattern)",
    "assign": "startingOffsets, with the shards that you want in JSON",
    "path": "topic or table",
    "startingoffsetsbytimestamp": "startingTimestamp, in ms",
    "endingoffsetsbytimestamp": "endingTimestamp, in ms",
    "kafka.isolation.level": "isolation",
    "kafka.group.id": "nothing: progress is in the query's checkpoint",
    "txnappid": "txnId",
    "versionasof": "asOfOffset",
    "timestampasof": "asOfTimestamp, in ms",
}

ISOLATIONS: Final = {
    "committed": "committed",
    "uncommitted": "uncommitted",
    "read_committed": "committed",
    "read_uncommitted": "uncommitted",
}
TIMEOUT_MS_DEFAULT: Final = 60_000
FETCH_BYTES_DEFAULT: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class OffsetSpec:
    """Where to start or end: `default` (EARLIEST or LATEST) for every shard, or a timestamp, or chosen offsets per shard.

    `chosen` maps topic -> shard -> offset (EARLIEST and LATEST stand for themselves); `only_chosen`: read no other shards.
    """

    default: int = EARLIEST
    timestamp_ms: int | None = None
    chosen: dict[str, dict[int, int]] = field(default_factory=dict)

    @property
    def only_chosen(self) -> bool:
        """Were shards named one by one?"""
        return bool(self.chosen)


@dataclass(frozen=True)
class Target:
    """What every use needs: where the cluster is and which topics, or which table."""

    servers: tuple[tuple[str, int], ...]
    names: tuple[str, ...]
    is_table: bool
    timeout_ms: int

    @property
    def name(self) -> str:
        """The one table or topic, for uses that take just one."""
        return self.names[0]


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read. `streaming` decides the defaults that differ."""

    target: Target
    mode: str  # "log" for topics; "changes" or "snapshot" for a table
    starting: OffsetSpec
    ending: OffsetSpec
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_headers: bool
    isolation: str
    as_of: OffsetSpec | None
    fetch_bytes: int


class Options:
    """Typed access to raw options, with errors that name the option."""

    def __init__(
        self, raw: Mapping[str, str], known: tuple[str, ...], other: tuple[str, ...], use: str
    ) -> None:
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

    def target(self, *, several: bool) -> Target:
        """Servers and topics or table."""
        topic, table = self.text("topic"), self.text("table")
        if (topic is None) == (table is None):
            raise InvalidRequestError('give either option("topic", ...) or option("table", ...)')
        names = (
            tuple(name.strip() for name in (topic or "").split(",") if name.strip())
            if topic is not None
            else ()
        )
        if table:
            names = (table,)
        if not names:
            raise InvalidRequestError("the option topic or table is empty")
        if len(set(names)) != len(names):
            raise InvalidRequestError(f"a topic is named twice: {topic}")
        if len(names) > 1 and not several:
            raise InvalidRequestError(f"a write goes to one topic, not to {len(names)}: {topic}")
        timeout_ms = self.number("timeoutMs", TIMEOUT_MS_DEFAULT) or TIMEOUT_MS_DEFAULT
        return Target(parse_servers(self.text("servers")), names, table is not None, timeout_ms)


def parse_servers(text: str | None) -> tuple[tuple[str, int], ...]:
    """`host:port[,host:port...]` as pairs; raises InvalidRequestError."""
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
    return tuple(found)


def _unknown(name: str, known: dict[str, str], elsewhere: dict[str, str], use: str) -> str:
    if name in _HINTS:
        return f"option {name!r} is unknown to antiphon; use {_HINTS[name]}"
    if name in elsewhere:
        return f"option {elsewhere[name]} does not apply to {use}"
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if near:
        return f"option {name!r} is unknown; did you mean {known[near[0]]}?"
    return f"option {name!r} is unknown; there is {', '.join(known.values())}"


class Shape(NamedTuple):
    """What decides about the columns."""

    is_table: bool
    include_headers: bool


def parse_shape(raw: Mapping[str, str]) -> Shape:
    """The options that decide about columns; the others are checked when it is known what they are for."""
    options = Options(raw, COMMON + READ + WRITE, (), "a read")
    return Shape(options.target(several=True).is_table, options.flag("includeHeaders", default=False))


def parse_read(raw: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Options of `spark.read` or `spark.readStream`; raises InvalidRequestError."""
    options = Options(raw, COMMON + READ, WRITE, "a read")
    target = options.target(several=True)
    mode = _mode(options, target, streaming=streaming)
    if streaming:
        refuse(options, "a stream", ("endingOffsets", "endingTimestamp", "asOfOffset", "asOfTimestamp"))
    else:
        refuse(options, "a batch read", ("maxOffsetsPerTrigger",))
    if mode == "snapshot":
        refuse(
            options,
            "a snapshot of a table; for its changes set mode=changes",
            (
                "startingOffsets",
                "endingOffsets",
                "startingTimestamp",
                "endingTimestamp",
                "isolation",
                "minPartitions",
            ),
        )
    else:
        refuse(options, "anything but a snapshot of a table", ("asOfOffset", "asOfTimestamp"))
    if target.is_table:
        refuse(options, "a table, whose columns are fixed", ("includeHeaders",))
    isolation = options.choice("isolation", "committed", ISOLATIONS)
    if isolation == "uncommitted" and (streaming or target.is_table):
        raise InvalidRequestError(
            "isolation=uncommitted is for batch reads of topics: rows that may vanish cannot be processed exactly once"
        )
    return ReadOptions(
        target=target,
        mode=mode,
        starting=_offsets(options, "starting", target, LATEST if streaming else EARLIEST),
        ending=_offsets(options, "ending", target, LATEST),
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger", None),
        min_partitions=options.number("minPartitions", None, high=100_000),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        include_headers=options.flag("includeHeaders", default=False),
        isolation=isolation,
        as_of=_as_of(options, target),
        fetch_bytes=options.number("fetchBytes", FETCH_BYTES_DEFAULT, low=1024, high=32 * 1024 * 1024) or 0,
    )


def _mode(options: Options, target: Target, *, streaming: bool) -> str:
    if not target.is_table:
        if options.text("mode") is not None:
            raise InvalidRequestError("option mode is for tables; a topic has one mode of reading")
        return "log"
    mode = options.choice("mode", "changes" if streaming else "snapshot", ("changes", "snapshot"))
    if streaming and mode == "snapshot":
        raise InvalidRequestError(
            "a snapshot cannot be streamed; mode=changes from startingOffsets=earliest gives all changes"
        )
    return mode


def refuse(options: Options, use: str, names: tuple[str, ...]) -> None:
    """Raise InvalidRequestError where one of these options was given."""
    for name in names:
        if options.text(name) is not None:
            raise InvalidRequestError(f"option {name} does not apply to {use}")


def _offsets(options: Options, which: str, target: Target, default: int) -> OffsetSpec:
    name, timestamp_name = f"{which}Offsets", f"{which}Timestamp"
    text, timestamp_ms = options.text(name), options.number(timestamp_name, None, low=0)
    if text is not None and timestamp_ms is not None:
        raise InvalidRequestError(f"give {name} or {timestamp_name}, not both")
    if timestamp_ms is not None:
        return OffsetSpec(default, timestamp_ms)
    if text is None:
        return OffsetSpec(default)
    if text.lower() in {"earliest", "latest"}:
        spec = OffsetSpec(EARLIEST if text.lower() == "earliest" else LATEST)
    else:
        spec = OffsetSpec(default, None, parse_offsets_json(name, text, target))
    ends_early = spec.default == EARLIEST or any(
        offset == EARLIEST for shards in spec.chosen.values() for offset in shards.values()
    )
    if which == "ending" and ends_early:
        raise InvalidRequestError("endingOffsets cannot be earliest")
    return spec


def parse_offsets_json(name: str, text: str, target: Target) -> dict[str, dict[int, int]]:
    """`{"topic": {"0": 23, "1": -2}}` (-2: earliest, -1: latest) as topic -> shard -> offset; raises InvalidRequestError."""
    wrong = InvalidRequestError(
        f'option {name} has to be earliest, latest or JSON such as {{"{target.name}": {{"0": 23}}}}, not {text!r}'
    )
    try:
        loaded: Any = json.loads(text)
        found = {
            str(topic): {int(shard): _offset(offset) for shard, offset in shards.items()}
            for topic, shards in loaded.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise wrong from None
    for topic, shards in found.items():
        if topic not in target.names:
            raise InvalidRequestError(
                f"option {name} names {topic!r}, but what is read is {', '.join(target.names)}"
            )
        if not shards or any(shard < 0 for shard in shards):
            raise wrong
    if set(found) != set(target.names):
        missing = ", ".join(topic for topic in target.names if topic not in found)
        raise InvalidRequestError(f"option {name} says nothing of {missing}")
    return found


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise TypeError("not an offset")
    return value


def _as_of(options: Options, target: Target) -> OffsetSpec | None:
    text, timestamp_ms = options.text("asOfOffset"), options.number("asOfTimestamp", None, low=0)
    if text is not None and timestamp_ms is not None:
        raise InvalidRequestError("give asOfOffset or asOfTimestamp, not both")
    if timestamp_ms is not None:
        return OffsetSpec(LATEST, timestamp_ms)
    if text is None:
        return None
    if text.isdigit():
        return OffsetSpec(LATEST, None, {target.name: {0: int(text)}})
    return OffsetSpec(LATEST, None, parse_offsets_json("asOfOffset", text, target))
