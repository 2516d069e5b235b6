"""Settings of nodes that can be changed while nodes run: which there are, what they may be, and which value counts.

`__cluster` has one set of values for all nodes, and one for each node that has some of its own. A node's own value goes
before that for all, this before the one in its node.toml, and this before the default. Everything that shows or changes
such settings goes by the table here: the command, Kafka's listener, the documentation. What is not in it stands in
node.toml only, and takes a restart.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from antiphon.errors import InvalidRequestError
from antiphon.model.body import Body
from antiphon.model.metadata import SHARDS_MAX

ALL_NODES: Final = -1  # in the place of a node's id
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
BOOLEANS: Final = ("true", "false")
MIGRATIONS: Final = ("disabled", "upgrade", "downgrade", "bidirectional")  # `coordination.migration_policy`
VALIDATIONS: Final = ("full", "uncompressed", "shallow")  # as `records.intake` has them
VALUE_CHARACTERS_MAX: Final = 64
CHANGES_MAX: Final = 1_000  # of one request
_INT_MAX: Final = 2**31 - 1
_TEBIBYTE: Final = 1 << 40
_PEBIBYTE: Final = 1 << 50
_TEN_YEARS_S: Final = 10 * 365 * 86_400
_MANY: Final = 10_000_000


class Source(StrEnum):
    """Where a value stands, the one that counts first."""

    NODE = "node"  # in `__cluster`, for this node
    ALL = "all"  # in `__cluster`, for all nodes
    FILE = "file"  # in node.toml, and it is not the default
    DEFAULT = "default"


class Told(NamedTuple):
    """A value, as text, and where it stands."""

    value: str
    source: Source


class NodeSettings(msgspec.Struct, frozen=True, array_like=True):
    """What `__cluster` has for one node, or for `ALL_NODES`: values as text, by the settings' names."""

    node: int
    values: dict[str, str]


class AlterNodeSettings(Body, frozen=True, array_like=True, tag=True):
    """Set values of a node, or of all of them, while they run (None: take one away); the others stay.

    `validate_only`: all is checked, and nothing changed. Answered when the asked node goes by it.
    """

    node: int = ALL_NODES
    config: Annotated[dict[str, str | None], Meta(max_length=CHANGES_MAX)] = {}
    validate_only: bool = False


class GetNodeSettings(Body, frozen=True, array_like=True, tag=True):
    """Ask a node for its settings that can be changed while it runs."""


class NodeSettingsReply(Body, frozen=True, array_like=True, tag=True):
    """What `__cluster` says for nodes and for all, and of the answering node each setting with its values: (value, where
    it stands), the one that counts first.
    """

    node: int
    entries: tuple[NodeSettings, ...]
    values: dict[str, tuple[tuple[str, str], ...]]


class NodeSetting(NamedTuple):
    """One setting. `name` is that of node.toml, with its section. It is one of `words`, or a number from `least` to `most`.

    Attributes:
        kafka: what Kafka calls it; empty: Kafka has none, and it goes by its own name there.
        effect: from when on a change counts, and for what.
    """

    name: str
    kafka: str
    default: str
    effect: str
    least: int = 0
    most: int = 0
    words: tuple[str, ...] = ()

    @property
    def kafka_name(self) -> str:
        """What it is called in Kafka's protocol."""
        return self.kafka or self.name

    @property
    def range_text(self) -> str:
        """What it may be, in words."""
        return " or ".join(self.words) if self.words else f"a whole number from {self.least} to {self.most}"

    def problem(self, value: str) -> str | None:
        """What is wrong with a value; None: nothing."""
        if self.words:
            fits = value in self.words
        else:
            fits = re.fullmatch(r"-1|\d{1,16}", value, re.ASCII) is not None
            fits = fits and self.least <= int(value) <= self.most
        return None if fits else f"{self.name} is {self.range_text}, not {value[:VALUE_CHARACTERS_MAX]!r}"

    def read(self, value: str) -> bool | int | str:
        """A value that fits, as `NodeConfig` has it."""
        if self.words == BOOLEANS:
            return value == "true"
        return value if self.words else int(value)


FOR_TOPICS: Final = {
    "flush": "flush",
    "flush.ms": "flush_interval_ms",
    "record.validation": "record_validation",
}
"""Settings of topics for which each node has a value where a topic has none, with their names in node.toml."""

FOR_TABLES: Final = {"retention.bytes": "table_log_bytes"}
"""The same for tables, which have those of topics, too."""


def own_name(setting: str, *, of_table: bool) -> str | None:
    """What node.toml calls the value for topics, or tables, without such a setting; None: nodes have none."""
    return FOR_TOPICS.get(setting) or (FOR_TABLES.get(setting) if of_table else None)


def text_of(value: Any) -> str:
    """A value of `NodeConfig` as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _members(section: str, size: int, size_max: int) -> tuple[NodeSetting, ...]:
    """The three settings that both kinds of groups have."""
    kafka = "group.consumer" if section == "consumer_groups" else "group.share"
    beats = "with each member's next heartbeat"
    return (
        NodeSetting(f"{section}.heartbeat_interval_ms", f"{kafka}.heartbeat.interval.ms", "5000", beats, 10, _INT_MAX),
        NodeSetting(f"{section}.session_timeout_ms", f"{kafka}.session.timeout.ms", "45000", beats, 100, _INT_MAX),
        NodeSetting(
            f"{section}.max_size", f"{kafka}.max.size", str(size), "for who joins; members stay", 1, size_max
        ),
    )  # fmt: skip


_TABLE: Final = (
    NodeSetting("log_level", "", "info", "with the next line of the node's log", words=LOG_LEVELS),
    NodeSetting(
        "auto_create_topics",
        "auto.create.topics.enable",
        "true",
        "with the next request of a Kafka client for a topic that is not there",
        words=BOOLEANS,
    ),
    NodeSetting(
        "num_partitions",
        "num.partitions",
        "1",
        "for topics that Kafka clients make from then on without a number",
        1,
        SHARDS_MAX,
    ),
    NodeSetting(
        "record_validation",
        "",
        "uncompressed",
        "with the next batch, in topics that say nothing of their own",
        words=VALIDATIONS,
    ),
    NodeSetting(
        "flush_interval_ms",
        "log.flush.interval.ms",
        "100",
        "with the next write, in topics with flush=interval that say nothing of their own",
        1,
        3_600_000,
    ),
    NodeSetting(
        "table_log_bytes",
        "",
        "-1",
        "with the next look, within 30 s, in tables that say nothing of their own; -1: no limit",
        -1,
        _PEBIBYTE,
    ),
    NodeSetting(
        "cleaner.bytes_per_s",
        "log.cleaner.io.max.bytes.per.second",
        str(32 << 20),
        "at once; 0: as fast as it goes",
        0,
        _TEBIBYTE,
    ),
    NodeSetting(
        "cleaner.memory",
        "log.cleaner.dedupe.buffer.size",
        str(128 << 20),
        "with the next pass",
        1024,
        _TEBIBYTE,
    ),
    NodeSetting(
        "cleaner.backoff_ms", "log.cleaner.backoff.ms", "15000", "at once; a pause begins anew", 1, 86_400_000
    ),
    NodeSetting(
        "scrub.bytes_per_s", "", str(8 << 20), "at once; 0: only on request", 0, _TEBIBYTE
    ),
    NodeSetting("scrub.interval_s", "", str(7 * 86_400), "at once", 1, _TEN_YEARS_S),
    NodeSetting(
        "transactions.timeout_max_ms",
        "transaction.max.timeout.ms",
        "900000",
        "for producers that begin from then on",
        1,
        _INT_MAX,
    ),
    NodeSetting(
        "transactions.id_expiration_s", "", str(7 * 86_400), "with the next look, at all ids", 60, _TEN_YEARS_S
    ),
    *_members("consumer_groups", 1_000, 10_000),
    NodeSetting(
        "consumer_groups.offsets_retention_ms",
        "",  # `offsets.retention.minutes` has another unit
        str(7 * 86_400_000),
        "at once, for all committed offsets; -1: they do not expire",
        -1,
        _TEN_YEARS_S * 1000,
    ),
    NodeSetting(
        "consumer_groups.offsets_retention_check_interval_ms",
        "offsets.retention.check.interval.ms",
        "600000",
        "at once; a pause begins anew",
        1,
        _INT_MAX,
    ),
    NodeSetting(
        "consumer_groups.migration_policy",
        "group.consumer.migration.policy",
        "bidirectional",
        "for who joins, or goes, from then on",
        words=MIGRATIONS,
    ),
    *_members("share_groups", 200, 1_000),
    NodeSetting(
        "share_groups.record_lock_duration_ms",
        "group.share.record.lock.duration.ms",
        "30000",
        "with the next record that is acquired, in groups that say nothing of their own",
        100,
        3_600_000,
    ),
    NodeSetting(
        "share_groups.delivery_count_limit",
        "group.share.delivery.count.limit",
        "5",
        "with the next record that is released, in groups that say nothing of their own",
        2,
        10,
    ),
    NodeSetting(
        "share_groups.partition_max_record_locks",
        "group.share.partition.max.record.locks",
        "2000",
        "with the next fetch, in groups that say nothing of their own",
        100,
        10_000,
    ),
    NodeSetting("sessions.per_shard", "", "10000", "for sessions of tables that begin from then on", 0, 100_000),
    NodeSetting("limits.connections", "", "10000", "for native connections that come from then on", 16, _MANY),
    NodeSetting("limits.producers", "", "1000000", "within two seconds", 1, _MANY),
    NodeSetting(
        "limits.topics_on_demand", "", "2000", "with the next topic that is made because a client asks", 1, _MANY
    ),
    NodeSetting("limits.topics", "", "10000", "with the next topic; the node that coordinates decides", 1, _MANY),
    NodeSetting(
        "limits.partitions", "", "100000", "with the next request; the node that coordinates decides", 1, _MANY
    ),
    NodeSetting(
        "limits.node_replicas", "", "20000", "with the next request; the node that coordinates decides", 1, _MANY
    ),
    NodeSetting(
        "limits.request_partitions", "", "10000",
        "with the next request, at the node that is asked and at the one that coordinates", 1, _MANY
    ),
)  # fmt: skip

NODE_SETTINGS: Final[dict[str, NodeSetting]] = {one.name: one for one in _TABLE}
"""All of them, by name."""

BY_KAFKA_NAME: Final[dict[str, NodeSetting]] = {one.kafka_name: one for one in _TABLE}
"""The same, as Kafka's protocol names them."""


def find_setting(name: str) -> NodeSetting:
    """A setting by its name or Kafka's. Raises InvalidRequestError for what cannot be changed while a node runs."""
    found = NODE_SETTINGS.get(name) or BY_KAFKA_NAME.get(name)
    if found is None:
        raise InvalidRequestError(
            f"{name[:VALUE_CHARACTERS_MAX]!r} cannot be changed while a node runs: set it in node.toml and restart the "
            "node (`antiphon node settings` lists what can be changed)"
        )
    return found


def by_own_names(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Changes by the settings' own names, where some are named as Kafka does. Raises InvalidRequestError."""
    found: dict[str, str | None] = {}
    for name, value in changes.items():
        own = find_setting(name).name
        if own in found:
            raise InvalidRequestError(
                f"{own} is named twice, as itself and as {NODE_SETTINGS[own].kafka_name}"
            )
        found[own] = value
    check_settings(found)
    return found


def check_settings(changes: Mapping[str, str | None]) -> None:
    """Raise InvalidRequestError for a name that is none of these, or a value that does not fit; None: as if never set."""
    for name, value in changes.items():
        if name not in NODE_SETTINGS:
            raise InvalidRequestError(find_setting(name).name + " is the name of this setting")
        problem = None if value is None else NODE_SETTINGS[name].problem(value)
        if problem:
            raise InvalidRequestError(problem)


def changed(before: NodeSettings, changes: Mapping[str, str | None]) -> NodeSettings:
    """What stands there after some changes, in the order of names."""
    after = {**before.values, **changes}
    kept = {name: value for name in sorted(after) if (value := after[name]) is not None}
    return NodeSettings(before.node, kept)


def put_entry(book: dict[int, NodeSettings], entry: NodeSettings) -> bool:
    """Take over what is set for a node now; without values there is nothing left. False: it was so already."""
    before = book.get(entry.node)
    if not entry.values:
        return book.pop(entry.node, None) is not None
    book[entry.node] = entry
    return before != entry


def values_of(
    setting: NodeSetting, book: Mapping[int, NodeSettings], node: int, in_file: str | None
) -> list[Told]:
    """Every value that there is for a node, the one that counts first; `in_file` None: it is not known.

    What this version cannot read, which a later one may have set, does not count.
    """
    found = []
    for scope, source in ((node, Source.NODE), (ALL_NODES, Source.ALL)):
        value = book[scope].values.get(setting.name) if scope in book else None
        if value is not None and setting.problem(value) is None:
            found.append(Told(value, source))
    if in_file is not None and in_file != setting.default:
        found.append(Told(in_file, Source.FILE))
    return [*found, Told(setting.default, Source.DEFAULT)]


def known_here(told: NodeSettingsReply) -> list[tuple[NodeSetting, tuple[tuple[str, str], ...]]]:
    """The settings that a node told of, with its values. One of another version may have others, and lack some."""
    return [
        (NODE_SETTINGS[name], values)
        for name, values in told.values.items()
        if values and name in NODE_SETTINGS
    ]


def unreadable(entries: Iterable[NodeSettings]) -> list[str]:
    """Names of settings that are set to what this version cannot read, or that it does not have."""
    return sorted(
        name
        for entry in entries
        for name, value in entry.values.items()
        if name not in NODE_SETTINGS or NODE_SETTINGS[name].problem(value) is not None
    )
