"""What a run of whole nodes is made of, drawn from its seed."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Final

from antiphon.invariants import invariant

PROFILES: Final = ("oxia", "raft", "fluvio", "tarantool", "kip27", "multi")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """One world. Times are in the unit of the name's ending; a weight of 0 leaves a fault or a workload out."""

    seed: int
    profile: str
    nodes: int
    replicas: int
    topic_shards: int
    table_shards: int
    commit: str  # rule of the topic; empty: the profile's
    fault_ms: int  # length of the phase with faults
    settle_ms: int  # at most so long may it take until everything agrees when faults have stopped
    fault_every_ms: int  # mean time between faults, 0: none
    fault_lasts_ms: int  # mean length of the long ones
    delay_us: tuple[int, int]  # of the network, one way
    clock_skew_ppm: int  # clocks run up to so much faster or slower
    pieces_ppm: int  # chance that a link splits what is written
    store_flush_every: int  # writes after which a table's store flushes, about
    appenders: int
    putters: int
    bulk_writers: int
    conditional_ppm: int
    kill_weight: int
    power_weight: int
    power_all_weight: int
    pause_weight: int
    cut_weight: int
    one_way_weight: int
    reset_weight: int
    slow_weight: int
    disk_full_weight: int
    disk_error_weight: int
    fsync_weight: int
    descriptors_weight: int
    lost_files_weight: int
    bit_flip_weight: int
    operator_weight: int
    trim_weight: int
    operations_per_s: int = 0  # of all clients together; 0: as fast as they can
    kafka_producers: int = 0
    kafka_consumers: int = 0
    kafka_members: int = 0  # of one consumer group
    kafka_transactors: int = 0
    consumer_members: int = 0  # of one group of Kafka's consumer protocol
    http_clients: int = 0
    scans: bool = False
    transactions: bool = False
    watches: bool = False
    followers: bool = False  # of topics: clients that read as records come
    multi_tables: bool = False  # only in the profile multi
    range_deletes: bool = False  # of a table of their own
    ledger_keepers: int = 0  # log-backed stores on one shard
    forwarded_clients: int = 0  # they ask any node
    kafka_admins: int = 0
    slow_calls_weight: int = 0
    old_shard_weight: int = 0
    late_weight: int = 0
    record_bytes: int = 0  # of each record of the topic, besides its value
    new_disk_weight: int = 0  # an empty disk in the place of the one that was there
    commands: str = ""  # of the operator, separated by spaces; empty: all that there are
    topic_config: str = ""  # of the topic: name=value, separated by spaces
    old_disk_weight: int = 0  # never drawn: nothing tells a node that its inventory is old too
    rocks: bool = False  # tables' stores are RocksDB, not the store in memory; it takes a quarter longer
    install_weight: int = 0  # power failures while a snapshot is put in place
    store_flip_weight: int = 0  # flipped bits in tables' stores only
    internal_elect_weight: int = 0  # elections of leaders in the cluster's own tables
    slow_watchers: bool = False  # they take their time over what they are given
    thread_lag_us: int = 0  # what was done in a thread is known so much later, at most
    intruders: int = 0  # clients that write to what belongs to the cluster
    store_block_bytes: int = 4096  # of tables' stores: a row of another block is read where one is damaged
    peer_key: bool = False  # nodes prove to each other that they know a key
    impostors: int = 0  # those who say that they are nodes, and do not know it; needs `peer_key`
    scrub: bool = False  # nodes read what is on their disks again and again
    rot_weight: int = 0  # bits that flip under a node that runs; needs `scrub`, or nobody finds them
    cluster_rot_weight: int = 0  # the same, in the cluster's own log only; never drawn, as `rot` does it too
    aborted_rot_weight: int = 0  # the same, in indexes of aborted transactions only
    term_rot_weight: int = 0  # bits that flip in a term which no durable index entry covers; never drawn
    disk_reserve: int = 0  # bytes that nodes keep free for votes and elections on full disks
    record_deleters: int = 0  # clients that let a topic of Kafka's begin later, and write and read it
    table_piece: int = 0  # operations of a table's write, or rows, in one turn of a node; 0: as in real nodes
    kill_midway_weight: int = 0  # kill -9 between two steps, or at a call to the disk
    power_midway_weight: int = 0  # power failures there
    stalled_readers: int = (
        0  # Kafka and HTTP clients that ask for much and do not read it; nodes have little memory then
    )
    static_members: int = 0  # of a consumer group in which two have one instance id
    client_kill_weight: int = 0  # clients end in the middle of what they do, and others take their places
    client_pause_weight: int = 0  # they stand still
    client_stall_weight: int = 0  # they do not read what they are sent
    client_skew_ppm: int = 0  # their clocks run up to so much faster or slower, and are set wrong
    compacted_writers: int = 0  # clients that write few keys to a compacted topic, over and over
    delete_retention_ms: int = 100_000  # of its tombstones
    cleaner_memory: int = 1 << 20  # for the keys of a pass
    swap_weight: int = 0  # power failures while a compacted segment takes its place
    principals: int = 0  # users with rights that come and go; then nobody is let in without a login
    row_flip_weight: int = 0  # bits flipped in files of tables' rows only; never drawn
    row_bytes: int = 0  # of each row that putters write, where its value has fewer
    finders: int = 0  # clients that ask for the row next to a key

    @property
    def moves_replicas(self) -> bool:
        """May a replica leave a node, and a new one of the same shard come to it?"""
        return self.operator_weight > 0 or self.kafka_admins > 0

    @property
    def has_key(self) -> bool:
        """Do nodes prove that they are nodes? They have to where clients log in."""
        return self.peer_key or bool(self.principals)

    def words(self) -> str:
        """All options on one line, for a reader."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw_options(seed: int, profile: str | None = None, **overrides: Any) -> ClusterOptions:
    """The world of `seed`; `overrides` replace single options after the draw. Profile None: drawn too."""
    if profile is None:
        profile = Random(f"antiphon cluster profile {seed}").choice(PROFILES)
    invariant(profile in PROFILES, f"profile {profile} is none of {PROFILES}")
    draw = Random(f"antiphon cluster {profile} {seed}")
    calm = draw.random() < 0.1  # now and then a quiet world: what breaks there breaks everywhere
    options = ClusterOptions(
        seed=seed,
        profile=profile,
        nodes=draw.choice((3, 3, 4)),
        replicas=3,
        topic_shards=draw.choice((1, 2)),
        table_shards=draw.choice((1, 2)),
        commit=_commit_rule(profile, draw),
        fault_ms=draw.choice((2_000, 4_000, 8_000)),
        settle_ms=60_000,
        fault_every_ms=0 if calm else draw.choice((150, 400, 1_000)),
        fault_lasts_ms=draw.choice((300, 1_000, 3_000)),
        delay_us=draw.choice(((50, 300), (100, 1_500), (500, 6_000))),
        clock_skew_ppm=draw.choice((0, 10_000, 100_000)),
        pieces_ppm=draw.choice((0, 200_000)),
        store_flush_every=draw.choice((5, 50, 500)),
        appenders=draw.choice((1, 2, 3)),
        putters=draw.choice((1, 2, 3)),
        bulk_writers=draw.choice((0, 0, 2)),
        conditional_ppm=1_000_000 if profile == "kip27" else draw.choice((0, 250_000)),
        kill_weight=draw.choice((0, 2, 6)),
        power_weight=draw.choice((0, 2, 6)),
        power_all_weight=draw.choice((0, 0, 1)),
        pause_weight=draw.choice((0, 2)),
        cut_weight=draw.choice((0, 3)),
        one_way_weight=draw.choice((0, 2)),
        reset_weight=draw.choice((0, 2)),
        slow_weight=draw.choice((0, 2)),
        disk_full_weight=draw.choice((0, 0, 2)),
        disk_error_weight=draw.choice((0, 0, 1)),
        fsync_weight=draw.choice((0, 0, 1)),
        descriptors_weight=draw.choice((0, 0, 1)),
        lost_files_weight=draw.choice((0, 0, 0, 1)),
        bit_flip_weight=draw.choice((0, 0, 0, 1)),
        operator_weight=draw.choice((0, 2, 4)),
        trim_weight=draw.choice((0, 0, 1)),
    )
    drawn: dict[str, Any] = {}
    for draw_part in _parts():
        drawn |= draw_part(profile, seed)
    return replace(options, **{**drawn, **_principals(profile, seed, drawn), **overrides})


def _parts() -> tuple[Callable[[str, int], dict[str, Any]], ...]:
    """What draws the other options, each from a stream of its own."""
    return (
        _loads,
        _more_loads,
        _listeners,
        _more_disk,
        _intruders,
        _networks,
        _delays,
        _deletes,
        _transactors,
        _consumers,
        _proofs,
        _rot,
        _pieces,
        _midway,
        _compaction,
        _clients,
        _seldom,
    )


def _loads(profile: str, seed: int) -> dict[str, Any]:
    """What clients do and how much: from a stream of its own, so that the world of a seed stays as it is."""
    draw = Random(f"antiphon cluster loads {profile} {seed}")
    flat_out = draw.random() < 0.1
    return {
        "operations_per_s": 0 if flat_out else draw.choice((100, 200, 400)),
        "scans": draw.random() < 0.4,
        "transactions": draw.random() < 0.4,
        "watches": draw.random() < 0.4,
        "followers": draw.random() < 0.4,
        "multi_tables": profile == "multi" and draw.random() < 0.7,
    }


def _more_loads(profile: str, seed: int) -> dict[str, Any]:
    """What few worlds have, so that seeds stay quick."""
    draw = Random(f"antiphon cluster more loads {profile} {seed}")
    return {
        "range_deletes": draw.random() < 0.2,
        "ledger_keepers": draw.choice((0, 0, 0, 0, 2, 3)),
        "forwarded_clients": draw.choice((0, 0, 0, 0, 2, 3)),
        "kafka_admins": draw.choice((0, 0, 0, 1)),
        **_finders(profile, seed),
    }


def _listeners(profile: str, seed: int) -> dict[str, int]:
    """Clients of the other listeners: few, because a seed should not take long, and half of the worlds have none."""
    draw = Random(f"antiphon cluster doors {profile} {seed}")  # the text is part of what a seed stands for
    some = draw.random() < 0.5
    mix = {
        "kafka_producers": draw.choice((0, 1, 2)),
        "kafka_consumers": draw.choice((0, 1, 1)),
        "kafka_members": draw.choice((0, 2, 3)),
        "http_clients": draw.choice((0, 1)),
    }
    return {name: number if some else 0 for name, number in mix.items()}


def _more_disk(profile: str, seed: int) -> dict[str, int]:
    draw = Random(f"antiphon cluster disks {profile} {seed}")
    return {
        "slow_calls_weight": draw.choice((0, 0, 1)),
        "old_shard_weight": draw.choice((0, 0, 0, 1)),
    }


def _networks(profile: str, seed: int) -> dict[str, int]:
    draw = Random(f"antiphon cluster networks {profile} {seed}")
    return {"late_weight": draw.choice((0, 0, 1))}


def _intruders(profile: str, seed: int) -> dict[str, int]:
    return {"intruders": Random(f"antiphon cluster intruders {profile} {seed}").choice((0, 0, 0, 0, 1))}


def _delays(profile: str, seed: int) -> dict[str, Any]:
    draw = Random(f"antiphon cluster delays {profile} {seed}")
    return {"thread_lag_us": draw.choice((0, 0, 0, 1_000, 20_000)), "slow_watchers": draw.random() < 0.3}


def _transactors(profile: str, seed: int) -> dict[str, int]:
    draw = Random(f"antiphon cluster transactors {profile} {seed}")
    return {"kafka_transactors": draw.choice((0, 0, 0, 1, 2, 3))}


def _consumers(profile: str, seed: int) -> dict[str, int]:
    draw = Random(f"antiphon cluster consumers {profile} {seed}")
    return {"consumer_members": draw.choice((0, 0, 0, 0, 2))}


def _deletes(profile: str, seed: int) -> dict[str, int]:
    draw = Random(f"antiphon cluster deletes {profile} {seed}")
    return {"record_deleters": 2 if draw.random() < 0.1 else 0}


def _proofs(profile: str, seed: int) -> dict[str, Any]:
    draw = Random(f"antiphon cluster proofs {profile} {seed}")
    peer_key = draw.random() < 0.25
    return {"peer_key": peer_key, "impostors": int(peer_key and draw.random() < 0.5)}


def _rot(profile: str, seed: int) -> dict[str, Any]:
    draw = Random(f"antiphon cluster rot {profile} {seed}")
    scrub = draw.random() < 0.2
    small: dict[str, Any] = {
        "topic_config": "segment.bytes=16384",
        "record_bytes": 500,
    }  # so that segments are closed
    small["disk_reserve"] = draw.choice((0, 16_384, 65_536))
    rot = {"rot_weight": 2 * int(scrub and draw.random() < 0.5)}
    rot["aborted_rot_weight"] = int(scrub and draw.random() < 0.5)
    return {"scrub": scrub, **rot, **(small if scrub else {})}


def _midway(profile: str, seed: int) -> dict[str, int]:
    draw = Random(f"antiphon cluster midway {profile} {seed}")
    return {"kill_midway_weight": draw.choice((0, 2, 6)), "power_midway_weight": draw.choice((0, 2, 6))}


def _pieces(profile: str, seed: int) -> dict[str, int]:
    """Small writes are to be worked on in pieces, too, as large ones are in real nodes."""
    return {"table_piece": Random(f"antiphon cluster pieces {profile} {seed}").choice((0, 1, 3))}


def _compaction(profile: str, seed: int) -> dict[str, int]:
    draw = Random(f"antiphon cluster compaction {profile} {seed}")
    writers = draw.choice((0, 0, 0, 1, 2))
    return {
        "compacted_writers": writers,
        "swap_weight": draw.choice((0, 2)) if writers else 0,
        "delete_retention_ms": draw.choice((200, 1_000, 100_000)),
        "cleaner_memory": draw.choice((1024, 1 << 20)),
    }


def _clients(profile: str, seed: int) -> dict[str, int]:
    """What goes wrong with clients."""
    draw = Random(f"antiphon cluster clients {profile} {seed}")
    return {
        "client_kill_weight": draw.choice((0, 0, 2)),
        "client_pause_weight": draw.choice((0, 0, 2)),
        "client_stall_weight": draw.choice((0, 0, 2)),
        "client_skew_ppm": draw.choice((0, 0, 10_000, 100_000)),
    }


def _seldom(profile: str, seed: int) -> dict[str, Any]:
    """What takes long, or hits hard: one of the machines, in few worlds."""
    draw = Random(f"antiphon cluster seldom {profile} {seed}")
    return {
        "rocks": draw.random() < 0.02,
        "new_disk_weight": int(draw.random() < 0.1),
        "install_weight": int(draw.random() < 0.15),
        "store_flip_weight": int(draw.random() < 0.05),
        "internal_elect_weight": int(draw.random() < 0.1),
        "stalled_readers": 2 * (draw.random() < 0.1),
        "static_members": 3 * (draw.random() < 0.15),
    }


def _finders(profile: str, seed: int) -> dict[str, int]:
    return {"finders": Random(f"antiphon cluster finders {profile} {seed}").choice((0, 0, 0, 0, 0, 1))}


NEEDS_NO_LOGIN: Final = (
    "compacted_writers",
    "kafka_producers",
    "kafka_consumers",
    "kafka_members",
    "kafka_admins",
    "kafka_transactors",
    "consumer_members",
    "http_clients",
    "intruders",
    "record_deleters",
    "static_members",
    "stalled_readers",
)
"""Workloads whose clients do not know how to log in."""


def _principals(profile: str, seed: int, drawn: dict[str, Any]) -> dict[str, int]:
    draw = Random(f"antiphon cluster principals {profile} {seed}")
    wanted = draw.random() < 0.25 and not any(drawn[name] for name in NEEDS_NO_LOGIN)
    return {"principals": 2 if wanted else 0}


def _commit_rule(profile: str, draw: Random) -> str:
    if profile == "tarantool":
        return draw.choice(("", "local", "at_least(3)"))
    if profile in {"oxia", "raft", "kip27"}:
        return draw.choice(("", "", "at_least(2)", "at_least(3)"))
    return ""
