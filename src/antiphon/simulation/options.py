"""What a run is made of, drawn from its seed.

Each seed gives another world: how many nodes, how good the network is, how slow the disks are, which faults come how
often. The derived options are printed with every failure, because they are the first thing to read.
"""

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Final

from antiphon.invariants import invariant

LOGS: Final = ("raft", "oxia", "fluvio", "tarantool", "kip27")
TABLES: Final = ("table", "table-raft")
PROFILES: Final = (*LOGS, *TABLES)
COORDINATED: Final = ("oxia", "fluvio", "kip27", "table")
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """One world. Times are in the unit of the name's ending; rates are per million (`_ppm`)."""

    seed: int
    profile: str  # raft, tarantool, table-raft: replicas vote; others: a coordinator (its log is a Raft group) appoints
    nodes: int
    shards: int  # data shards; in the oxia profile the coordinator's shard comes on top
    replicas: int  # size of each data shard's ensemble
    clients: int
    conditional_ppm: int  # share of appends that state the offset they expect
    warm_up: bool  # wait for the first leaders before faults begin
    safety_ms: int  # length of the phase with faults
    commit: str  # rule by which the topic commits at first; commands may change it
    min_live: int  # fewest live replicas with which commit=live commits
    unclean: bool  # may a replica that is not live be elected when no live one is left?
    commit_marker: bool  # a record in the log for commits
    ack_every: int  # entries after which a follower acknowledges
    liveness_ms: int  # at most so long may convergence take when faults have stopped
    tick_ms: int
    pre_vote: bool  # ask before raising the term (replicas that vote)
    election_spread_ticks: int  # random part of an election time-out; little of it makes candidates collide
    in_order: bool  # each link delivers in order (as one TCP connection does)
    delay_us_min: int
    delay_us_mean: int  # on top of the minimum, exponentially distributed
    loss_ppm: int
    duplicate_ppm: int
    sync_us_min: int
    sync_us_mean: int
    sync_stall_ppm: int  # share of syncs that take a hundred times as long
    clock_skew_ppm: int  # a node's clock runs up to so much faster or slower
    fault_every_ms: int  # mean time between faults, 0: none
    fault_lasts_ms: int  # mean length of the long ones; most are a fourth of that, or a twentieth
    crash_weight: int
    crash_all_weight: int
    partition_weight: int
    one_way_weight: int
    clog_weight: int
    pause_weight: int
    disk_failure_weight: int
    disk_full_weight: int
    bit_flip_weight: int
    operator_weight: int  # commands: elect another leader, change members or rules
    damage_ppm: int  # chance that a log is found damaged at a restart
    wipe_ppm: int  # chance that a node comes back with an empty disk
    trim_weight: int  # retention cuts the head of a log
    unsynced_kept_ppm: int  # chance that a crash keeps all unsynced writes rather than a random part

    @property
    def has_coordinator(self) -> bool:
        """Does a coordinator choose leaders and keep the metadata?"""
        return self.profile in COORDINATED

    @property
    def has_tables(self) -> bool:
        """Do clients use tables rather than logs?"""
        return self.profile in TABLES

    def words(self) -> str:
        """All options on one line, for a reader."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def derive(seed: int, profile: str | None = None, **overrides: Any) -> SimulationOptions:
    """Draw the world of `seed`; `overrides` replace single options after the draw. Profile None: drawn too."""
    if profile is None:
        draw = Random(f"antiphon profile {seed}")
        profile = draw.choice(LOGS)
        if draw.random() < len(TABLES) / len(PROFILES):
            profile = draw.choice(TABLES)
    invariant(profile in PROFILES, f"profile {profile} is none of {PROFILES}")
    draw = Random(f"antiphon simulation {profile} {seed}")
    coordinated = profile in COORDINATED
    nodes = draw.choice((3, 3, 4, 5)) if coordinated else draw.choice((3, 3, 3, 4, 5))
    replicas = 3 if coordinated or nodes < 5 or draw.random() < 0.4 else nodes
    calm = draw.random() < 0.1  # now and then a quiet world: what breaks there breaks everywhere
    delay_us_mean = draw.choice((100, 500, 2_000, 10_000))
    options = SimulationOptions(
        seed=seed,
        profile=profile,
        nodes=nodes,
        shards=draw.choice((1, 2)) if coordinated else 1,
        replicas=replicas,
        clients=draw.choice((2, 3, 4)),
        conditional_ppm=1_000_000 if profile == "kip27" else draw.choice((250_000, 250_000, 900_000)),
        warm_up=draw.random() < 0.75,
        safety_ms=draw.choice((4_000, 8_000) if coordinated else (1_500, 3_000, 6_000)),
        commit=_commit_rule(profile, replicas, draw),
        min_live=draw.choice((1, 1, 2)),
        unclean=profile == "fluvio" and draw.random() < 0.25,
        commit_marker=profile == "tarantool" or (coordinated and draw.random() < 0.3),
        ack_every=draw.choice((1, 1, 3)),
        liveness_ms=20_000,
        tick_ms=10,
        pre_vote=draw.random() < 0.75,
        election_spread_ticks=draw.choice((2, 10)),
        in_order=draw.random() < 0.4,
        delay_us_min=draw.choice((50, 200, 1_000)),
        delay_us_mean=delay_us_mean,
        loss_ppm=0 if calm else draw.choice((0, 10_000, 50_000, 200_000)),
        duplicate_ppm=0 if calm else draw.choice((0, 10_000, 100_000)),
        sync_us_min=draw.choice((50, 500)),
        sync_us_mean=draw.choice((100, 1_000, 5_000)),
        sync_stall_ppm=draw.choice((0, 5_000, 20_000)),
        clock_skew_ppm=draw.choice((0, 50_000, 300_000)),
        fault_every_ms=0 if calm else draw.choice((60, 120, 250)),
        fault_lasts_ms=draw.choice((400, 400, 400, 1_500)),
        crash_weight=draw.choice((0, 2, 6)),
        crash_all_weight=draw.choice((0, 1)),
        partition_weight=draw.choice((0, 2, 4)),
        one_way_weight=draw.choice((0, 1, 3)),
        clog_weight=draw.choice((0, 2)),
        pause_weight=draw.choice((0, 2)),
        disk_failure_weight=draw.choice((0, 1)),
        disk_full_weight=draw.choice((0, 0, 2)),
        bit_flip_weight=draw.choice((0, 0, 1)),
        operator_weight=draw.choice((0, 1, 3)),
        damage_ppm=draw.choice((0, 0, 150_000)),
        wipe_ppm=draw.choice((0, 0, 0, 150_000)),
        trim_weight=draw.choice((0, 2)),
        unsynced_kept_ppm=draw.choice((0, 200_000, 800_000)),
    )
    return replace(options, **overrides)


def _commit_rule(profile: str, replicas: int, draw: Random) -> str:
    if profile == "fluvio":
        return "live"
    if profile == "tarantool":
        return draw.choice(("quorum", "local", f"at_least({replicas})"))
    return draw.choice(("quorum", "quorum", f"at_least({replicas // 2 + 1})", f"at_least({replicas})"))
