"""What a node is told at its start: `node.toml` in its directory, as a checked struct.

Only what an operator may decide stands here; what depends on the machine (tick, heartbeat, time-outs) has defaults
that were chosen together and are checked together: a node that misses a few heartbeats is slow, not dead.
"""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from antiphon.coordination.capacity import Capacity
from antiphon.coordination.checkpoints import CheckpointRule
from antiphon.coordination.profiles import PROFILES
from antiphon.errors import UNDECODABLE, InvalidRequestError, NewerFormatError
from antiphon.model.metadata import SHARDS_MAX
from antiphon.model.node_settings import LOG_LEVELS
from antiphon.records.intake import DEFAULT as VALIDATION_DEFAULT
from antiphon.records.intake import VALIDATIONS
from antiphon.security.private_files import replace_text
from antiphon.security.settings import Security, check_security

CONFIG_FILE: Final = "node.toml"
CONFIG_FORMAT: Final = 1
CLUSTER_VOTERS_MAX: Final = 3
_AGAIN: Final = "correct the file, or restore it: `antiphon up` writes one where there is none"
RACK_MAX: Final = 249
CHOICES: Final[dict[str, Collection[str]]] = {
    "flush": ("always", "interval", "os"),
    "record_validation": VALIDATIONS,
    "profile": PROFILES,
    "dial": ("each", "leader", "follower"),
    "log_level": LOG_LEVELS,
}
"""What settings may be that are one of a few words."""

Port = Annotated[int, Meta(ge=-1, le=65_535)]
PositiveMs = Annotated[int, Meta(ge=1, le=3_600_000)]
PositiveBytes = Annotated[int, Meta(ge=4096)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]


class Member(msgspec.Struct, forbid_unknown_fields=True):
    """An initial member of the cluster: its id, the `host:port` of its native listener, and of the one for other nodes
    (empty: the native one).
    """

    id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    native: str
    peer: str = ""


class Ports(msgspec.Struct, forbid_unknown_fields=True):
    """Port of each listener; 0: any free one, -1: none (the native one must be there).

    `peer` is for other nodes, which use the native one where nothing proves that they are nodes.
    """

    native: Annotated[int, Meta(ge=0, le=65_535)] = 7400
    kafka: Port = 9092
    oxia: Port = -1
    http: Port = 8080
    peer: Port = -1


class Timings(msgspec.Struct, forbid_unknown_fields=True):
    """Durations in milliseconds."""

    tick: PositiveMs = 25  # unit of the replicas' integer clocks
    heartbeat: PositiveMs = 150  # node to coordinator
    node_dead: PositiveMs = 900  # silence after which the coordinator gives a node up
    election_min: PositiveMs = 500  # `__cluster`: silence of the leader, drawn between the two
    election_max: PositiveMs = 1000
    # before there was any leader, and before a node has joined, it tries again so often; 0: as later
    founding: Annotated[int, Meta(ge=0, le=3_600_000)] = 50
    reconnect_max: PositiveMs = 500
    # how long a start waits for the rest of the cluster before it says "ready" anyway
    ready_wait: PositiveMs = 15_000
    checkpoint: PositiveMs = 2000  # how often high watermarks are noted on disk
    retention_check: PositiveMs = 30_000
    bulk_commit: PositiveMs = 10  # what a bulk write may take before such writes are let through more slowly


class Limits(msgspec.Struct, forbid_unknown_fields=True):
    """Bounds of the node's queues, in bytes: over one the node stops reading from whoever fills it. And of how many topics
    and partitions clients may make (`coordination.capacity`).
    """

    wal_backlog: PositiveBytes = 64 * 1024 * 1024
    append_in_flight: PositiveBytes = 64 * 1024 * 1024  # appended, not committed, whole node
    connection_write: PositiveBytes = 8 * 1024 * 1024  # waiting to be sent to one client
    peer_write: PositiveBytes = 16 * 1024 * 1024  # waiting to be sent to one node
    requests_per_connection: Annotated[int, Meta(ge=1)] = 4096
    connections: Annotated[int, Meta(ge=16)] = 10_000  # native connections, other nodes' included
    # of a listener's connections, at most for one address
    address_share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    memory: PositiveBytes = 128 * 1024 * 1024  # what clients send, what is under work, what they do not read
    kafka_memory: PositiveBytes = 96 * 1024 * 1024  # of that, at most for each listener
    native_memory: PositiveBytes = 96 * 1024 * 1024
    http_memory: PositiveBytes = 16 * 1024 * 1024
    oxia_memory: PositiveBytes = 96 * 1024 * 1024
    connection_memory: PositiveBytes = 32 * 1024 * 1024  # and for one connection, or one larger request
    # of archived records; 0: none are served
    archive_memory: Annotated[int, Meta(ge=0, le=1 << 40)] = 64 * 1024 * 1024
    # kept free for votes and elections
    disk_reserve: Annotated[int, Meta(ge=0, le=1 << 40)] = 8 * 1024 * 1024
    producers: Count = 1_000_000  # that all replicas of the node remember before it refuses new ones
    bulk_floor: PositiveBytes = 256 * 1024  # bytes of bulk writes a second that are let through in any case
    bulk_ceiling: PositiveBytes = 1 << 30  # and at most
    topics_on_demand: Count = 2_000  # of the cluster, above which none is made because a client asks for it
    # of the cluster, tables included; what belongs to the cluster itself is never refused
    topics: Count = 10_000
    partitions: Count = 100_000  # of all of them
    node_replicas: Count = 20_000  # that one node is to hold
    request_partitions: Count = 10_000  # that one request may make

    def of_address(self, connections: int) -> int:
        """How many of a listener's connections one address may hold."""
        return max(1, int(connections * self.address_share))

    @property
    def capacity(self) -> Capacity:
        """The last four, as the coordinator takes them."""
        return Capacity(self.topics, self.partitions, self.node_replicas, self.request_partitions)


class Scrub(msgspec.Struct, forbid_unknown_fields=True):
    """How what is on the disk is read again, to find what is not as it was written."""

    bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 40)] = 8 * 1024 * 1024  # 0: only on request
    interval_s: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)] = 7 * 86_400  # each shard at least once


class Transactions(msgspec.Struct, forbid_unknown_fields=True):
    """Transactions of Kafka's clients: the longest time-out that a client may ask for, and after how much silence a
    transactional id is forgotten.
    """

    timeout_max_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 900_000
    id_expiration_s: Annotated[int, Meta(ge=60, le=10 * 365 * 86_400)] = 7 * 86_400


class ConsumerGroups(msgspec.Struct, forbid_unknown_fields=True):
    """Groups of Kafka's consumer protocol: Kafka's `group.consumer.*` of the same names. And of groups of both protocols
    how long committed offsets are kept that nobody reads on from, Kafka's `offsets.retention.*`.
    """

    heartbeat_interval_ms: Annotated[int, Meta(ge=10, le=2**31 - 1)] = 5_000
    session_timeout_ms: Annotated[int, Meta(ge=100, le=2**31 - 1)] = 45_000
    max_size: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    # -1: for ever
    offsets_retention_ms: Annotated[int, Meta(ge=-1, le=10 * 365 * 86_400_000)] = 7 * 86_400_000
    offsets_retention_check_interval_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 600_000
    migration_policy: Literal["disabled", "upgrade", "downgrade", "bidirectional"] = "bidirectional"


class ShareGroups(msgspec.Struct, forbid_unknown_fields=True):
    """Share groups: Kafka's `group.share.*` of the same names."""

    heartbeat_interval_ms: Annotated[int, Meta(ge=10, le=2**31 - 1)] = 5_000
    session_timeout_ms: Annotated[int, Meta(ge=100, le=2**31 - 1)] = 45_000
    max_size: Annotated[int, Meta(ge=1, le=1_000)] = 200
    record_lock_duration_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000
    delivery_count_limit: Annotated[int, Meta(ge=2, le=10)] = 5
    partition_max_record_locks: Annotated[int, Meta(ge=100, le=10_000)] = 2_000


class Cleaner(msgspec.Struct, forbid_unknown_fields=True):
    """How logs are compacted: bytes read a second (0: as fast as it goes), memory for the keys of a pass, and how long to
    wait between two passes. Kafka's `log.cleaner.io.max.bytes.per.second`, `.dedupe.buffer.size` and `.backoff.ms`.
    """

    bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 40)] = 32 * 1024 * 1024
    memory: Annotated[int, Meta(ge=1024, le=1 << 40)] = 128 * 1024 * 1024
    backoff_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 15_000


class Sessions(msgspec.Struct, forbid_unknown_fields=True):
    """Sessions in tables: the time-outs that a client may ask for, and how many may be open in a shard at a time."""

    timeout_min_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1_000
    timeout_max_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 300_000
    per_shard: Annotated[int, Meta(ge=0, le=100_000)] = 10_000


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """When the log of the cluster's metadata, `__cluster`, is cut short: at least so many offsets after the last checkpoint
    (0: never), and so many times as many as there are objects; how many objects are written at a time; and how large a
    segment becomes.
    """

    checkpoint_records: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    checkpoint_per_object: Annotated[int, Meta(ge=1, le=1_000)] = 2
    checkpoint_batch: Annotated[int, Meta(ge=1, le=10_000)] = 256
    segment_bytes: Annotated[int, Meta(ge=4096, le=1 << 30)] = 16 * 1024 * 1024

    @property
    def rule(self) -> CheckpointRule:
        """The first three, as the coordinator takes them."""
        return CheckpointRule(self.checkpoint_records, self.checkpoint_per_object, self.checkpoint_batch)


class LogFiles(msgspec.Struct, forbid_unknown_fields=True):
    """How large node.log becomes before it is put aside, and how many files there are, that one included."""

    bytes: Annotated[int, Meta(ge=4096, le=1 << 40)] = 64 * 1024 * 1024
    files: Annotated[int, Meta(ge=1, le=1000)] = 5


class NodeConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Everything a node is told. `dir` is where it keeps its data.

    `bootstrap` matters to one of the `voters` whose `dir` is new: with it the node founds a cluster, without it its disk has
    been replaced, and it does not vote before it knows what the others know.
    """

    cluster_id: Annotated[str, Meta(min_length=1, max_length=128)]
    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    nodes: list[Member]
    dir: Path = Path()
    format: int = CONFIG_FORMAT
    listen_host: str = "127.0.0.1"
    advertised_host: str = ""  # what others are told; empty: listen_host
    # where it stands: Kafka's clients read from a replica near them
    rack: Annotated[str, Meta(max_length=RACK_MAX)] = ""
    bootstrap: bool = False  # this start founds a cluster; said once, so never saved
    profile: str = "oxia"  # of the first table, and of topics that name none
    flush: str = "always"  # always | interval | os
    flush_interval_ms: PositiveMs = 100
    # full | uncompressed | shallow: how far a client's batch is looked at
    record_validation: str = VALIDATION_DEFAULT
    table_log_bytes: Annotated[int, Meta(ge=-1, le=1 << 50)] = -1  # of each shard of a table; -1: no limit
    log_level: str = "info"
    auto_create_topics: bool = True
    # of topics that Kafka's clients make without a number
    num_partitions: Annotated[int, Meta(ge=1, le=SHARDS_MAX)] = 1
    dial: str = "each"  # each | leader | follower: over whose connection a shard's Append and Ack travel (C3)
    ports: Ports = msgspec.field(default_factory=Ports)
    timings: Timings = msgspec.field(default_factory=Timings)
    limits: Limits = msgspec.field(default_factory=Limits)
    scrub: Scrub = msgspec.field(default_factory=Scrub)
    cleaner: Cleaner = msgspec.field(default_factory=Cleaner)
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    log: LogFiles = msgspec.field(default_factory=LogFiles)
    transactions: Transactions = msgspec.field(default_factory=Transactions)
    consumer_groups: ConsumerGroups = msgspec.field(default_factory=ConsumerGroups)
    share_groups: ShareGroups = msgspec.field(default_factory=ShareGroups)
    sessions: Sessions = msgspec.field(default_factory=Sessions)
    security: Security = msgspec.field(default_factory=Security)

    @property
    def public_host(self) -> str:
        """Host in the addresses that clients and other nodes are given."""
        return self.advertised_host or self.listen_host

    @property
    def voters(self) -> tuple[int, ...]:
        """The ensemble of `__cluster`: the first of `nodes`, an odd number of them, at most three."""
        ids = [member.id for member in self.nodes]
        count = min(CLUSTER_VOTERS_MAX, len(ids))
        return tuple(ids[: count if count % 2 else count - 1])


def check_config(config: NodeConfig) -> NodeConfig:
    """Return `config` when its parts fit together; raises InvalidRequestError (NewerFormatError) saying what does not."""
    if config.format > CONFIG_FORMAT:
        raise NewerFormatError(
            f"{CONFIG_FILE} has format {config.format}, this version reads up to {CONFIG_FORMAT}: "
            "start the node with the newer antiphon that wrote it"
        )
    _check_members(config.nodes)
    for name, known in CHOICES.items():
        found = getattr(config, name)
        if found not in known:
            raise InvalidRequestError(f"{name} must be {' or '.join(known)}, not {found!r}")
    check_security(config.security)
    _check_peer_port(config)
    timings = config.timings
    if not timings.tick * 4 <= timings.election_min < timings.election_max:
        raise InvalidRequestError("timings: 4 x tick <= election_min < election_max must hold")
    if timings.node_dead < 3 * timings.heartbeat:
        raise InvalidRequestError("timings: node_dead must be at least 3 x heartbeat")
    return config


def _check_members(nodes: list[Member]) -> None:
    ids = [member.id for member in nodes]
    if not ids:
        raise InvalidRequestError("`nodes` is empty: name at least this node with its native address")
    if len(set(ids)) != len(ids):
        raise InvalidRequestError(f"`nodes` names a node id twice: {ids}")
    for member in nodes:
        split_address(member.native)
        if member.peer:
            split_address(member.peer)


def _check_peer_port(config: NodeConfig) -> None:
    if config.security.proves_nodes != (config.ports.peer >= 0):
        raise InvalidRequestError(
            "ports.peer and security.peer_key (or security.peer_tls) belong together: nodes prove who they are on a port of "
            "their own"
        )
    asks = config.security.authentication or config.security.tls.on
    if asks and len(config.nodes) > 1 and not config.security.proves_nodes:
        raise InvalidRequestError(
            "security: clients are to prove who they are, or to use TLS, and nodes are not: whoever reaches the native port "
            "could say that it is a node. Set security.peer_key or security.peer_tls, and ports.peer, on every node "
            "(docs/security.md)"
        )


def split_address(address: str) -> tuple[str, int]:
    """`host:port` in its parts; an IPv6 host stands in brackets. Raises InvalidRequestError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65_535:
        raise InvalidRequestError(f"{address!r} is not host:port with a port from 1 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def load_config(path: Path, own: Mapping[str, Any] | None = None) -> NodeConfig:
    """Read `node.toml`, or the one in the directory `path`; a relative `dir` counts from the file's directory.

    `own`: settings that go before those of the file, which several nodes may then share.

    Raises InvalidRequestError saying which file and field is wrong, NewerFormatError for one that a newer version wrote.
    """
    file = path / CONFIG_FILE if path.is_dir() else path
    try:
        plain = tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidRequestError(f"cannot read {file}: {error.strerror}; {_AGAIN}") from None
    except UNDECODABLE as error:
        raise InvalidRequestError(f"{file} is not TOML: {error}; {_AGAIN}") from None
    format_ = plain.get("format", CONFIG_FORMAT)
    if isinstance(format_, int) and format_ > CONFIG_FORMAT:
        raise NewerFormatError(
            f"{file} has format {format_}, this version reads up to {CONFIG_FORMAT}: use the antiphon that wrote it"
        )
    plain.update(own or {})
    try:
        config = msgspec.convert(plain, NodeConfig, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{file}: {error}; {_AGAIN}") from None
    try:
        config.dir = (file.parent / config.dir).resolve()
    except (ValueError, OSError) as error:
        raise InvalidRequestError(f"{file}: dir is no path: {error}; {_AGAIN}") from None
    try:
        return check_config(config)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{file}: {error.message}; {_AGAIN}") from None


def _path(type_: type, value: object) -> Path:
    """`dir`: the only field of a type that msgspec does not know."""
    if type_ is not Path or not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    return Path(value)


def save_config(config: NodeConfig, directory: Path) -> None:
    """Write `node.toml` into `directory`, replacing an old one as a whole.

    What has its default is a remark there: an earlier version that does not know a setting can then read the file too.
    """
    check_config(config)
    plain = _plain(config)
    plain.pop("dir")
    plain.pop("bootstrap")
    members = plain.pop("nodes")
    lines = _section("", plain, _plain(NodeConfig(cluster_id="", node_id=-1, nodes=[], format=-1)))
    for member in members:
        lines += ["", "[[nodes]]", *(f"{name} = {toml_value(inner)}" for name, inner in member.items())]
    replace_text(directory / CONFIG_FILE, "\n".join(lines) + "\n")


def _plain(config: NodeConfig) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(config, enc_hook=str)
    return found


def _section(name: str, plain: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    """The lines of one table of TOML, those of the tables in it after them."""
    own = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    remarks = {key: "# " * (value == defaults[key]) for key, value in own.items()}
    remark = "" if "" in remarks.values() else "# "
    lines = ["", f"{remark}[{name}]"] if name else []
    lines += [f"{remarks[key]}{key} = {toml_value(value)}" for key, value in own.items()]
    for key, value in plain.items():
        if isinstance(value, dict):
            lines += _section(f"{name}.{key}" if name else key, value, defaults[key])
    return lines


def toml_value(value: bool | int | str | list[str]) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(toml_value(one) for one in value)}]"
    # JSON's escapes are TOML's, for the strings that occur here; DEL is the one that JSON leaves bare.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
