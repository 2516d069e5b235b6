"""What a run of whole nodes is made of, drawn from its seed.

Options of the world itself are in `world_options.py`. Those of a fault or a workload stand where it registers itself
(`faults.register`, `workloads/registry.workload`).
"""

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import antiphon.simulation.cluster
import antiphon.simulation.cluster.workloads
from antiphon.invariants import invariant
from antiphon.simulation.cluster.drawing import (
    LISTENERS,
    MAIN,
    Drawn,
    draw_all,
    import_all,
    one_of,
    sometimes,
)
from antiphon.simulation.cluster.faults import kinds_in_order
from antiphon.simulation.cluster.workloads.registry import workloads_in_order
from antiphon.simulation.cluster.world_options import WorldOptions

PROFILES: Final = ("oxia", "raft", "fluvio", "tarantool", "kip27", "multi")


def _commit_rule(draw: Random, world: Mapping[str, Any]) -> str:
    profile = world["profile"]
    if profile == "tarantool":
        return str(draw.choice(("", "local", "at_least(3)")))
    if profile in {"oxia", "raft", "kip27"}:
        return str(draw.choice(("", "", "at_least(2)", "at_least(3)")))
    return ""


def _pace(draw: Random, world: Mapping[str, Any]) -> int:
    return 0 if world["+flat out"] else int(draw.choice((100, 200, 400)))


def _often(draw: Random, world: Mapping[str, Any]) -> int:
    return 0 if world["+calm"] else int(draw.choice((150, 400, 1_000)))


def _conditional(draw: Random, world: Mapping[str, Any]) -> int:
    return 1_000_000 if world["profile"] == "kip27" else int(draw.choice((0, 250_000)))


_OF_WORLDS: Final[dict[str, Drawn]] = {
    # Now and then a quiet world: what breaks there breaks everywhere.
    "+calm": Drawn(sometimes(0.1), MAIN, 0),
    "nodes": Drawn(one_of(3, 3, 4), MAIN, 1),
    "topic_shards": Drawn(one_of(1, 2), MAIN, 2),
    "table_shards": Drawn(one_of(1, 2), MAIN, 3),
    "commit": Drawn(_commit_rule, MAIN, 4),
    "fault_ms": Drawn(one_of(2_000, 4_000, 8_000), MAIN, 5),
    "fault_every_ms": Drawn(_often, MAIN, 6),
    "fault_lasts_ms": Drawn(one_of(300, 1_000, 3_000), MAIN, 7),
    "delay_us": Drawn(one_of((50, 300), (100, 1_500), (500, 6_000)), MAIN, 8),
    "clock_skew_ppm": Drawn(one_of(0, 10_000, 100_000), MAIN, 9),
    "pieces_ppm": Drawn(one_of(0, 200_000), MAIN, 10),
    "store_flush_every": Drawn(one_of(5, 50, 500), MAIN, 11),
    "appenders": Drawn(one_of(1, 2, 3), MAIN, 12),
    "putters": Drawn(one_of(1, 2, 3), MAIN, 13),
    "conditional_ppm": Drawn(_conditional, MAIN, 15),
    "+flat out": Drawn(sometimes(0.1), "loads", 0),
    "operations_per_s": Drawn(_pace, "loads", 1),
    # Few clients of the other listeners, because a seed should not take long. The text is part of what a seed stands for.
    LISTENERS: Drawn(sometimes(0.5), "doors", 0),
    "thread_lag_us": Drawn(one_of(0, 0, 0, 1_000, 20_000), "delays", 0),
    "slow_watchers": Drawn(sometimes(0.3), "delays", 1),
    "tries_again": Drawn(sometimes(0.5)),
    "whole_readers": Drawn(sometimes(0.5)),
    "peer_key": Drawn(sometimes(0.25), "proofs", 0),
    "scrub": Drawn(sometimes(0.2), "rot", 0),
    "disk_reserve": Drawn(lambda draw, world: draw.choice((0, 16_384, 65_536)) * world["scrub"], "rot", 1),
    # Small segments, which are closed soon: only those are scrubbed.
    "topic_config": Drawn(lambda _, world: "segment.bytes=16384" * world["scrub"], "rot", 4),
    "record_bytes": Drawn(lambda _, world: 500 * world["scrub"], "rot", 5),
    # Small writes are to be worked on in pieces, too, as large ones are in real nodes.
    "table_piece": Drawn(one_of(0, 1, 3), "pieces"),
    "client_skew_ppm": Drawn(one_of(0, 0, 10_000, 100_000), "clients", 3),
    "rocks": Drawn(sometimes(0.02), "seldom", 0),
    "delete_retention_ms": Drawn(one_of(200, 1_000, 100_000), "compaction", 2),
    "cleaner_memory": Drawn(one_of(1024, 1 << 20), "compaction", 3),
    "checkpoint_records": Drawn(one_of(0, 1, 20, 60, 150), "checkpoints", 0),
    "checkpoint_batch": Drawn(one_of(1, 4, 16, 256), "checkpoints", 1),
    "metadata_segment_bytes": Drawn(one_of(4096, 16_384, 1 << 24), "checkpoints", 2),
    "oxia_page_rows": Drawn(one_of(0, 1, 3)),
    # Mostly as nodes ship.
    "founding_ms": Drawn(one_of(*[50] * 10, 0, 200)),
    "row_log_bytes": Drawn(one_of(*[0] * 7, 4096, 16_384)),
    "traced": Drawn(sometimes(0.1)),
    "read_lease_ms": Drawn(one_of(*[0] * 12, 20, 50, 100, 200), "leases", 0),
}
"""How options of the world itself are drawn. The others are never drawn, or are the same in all worlds."""

import_all(antiphon.simulation.cluster, "_faults")
import_all(antiphon.simulation.cluster.workloads)

_OF_OTHERS: Final[dict[str, tuple[type[int] | type[bool], Drawn | None]]] = {
    **{kind.option: (int, kind.drawn) for kind in kinds_in_order()},
    **{one.option: (one.type, one.drawn) for one in workloads_in_order()},
}
"""Options that faults and workloads bring with them: what they are, and how they are drawn."""

NEEDS_NO_LOGIN: Final = tuple(one.option for one in workloads_in_order() if not one.logs_in)
"""Workloads whose clients do not know how to log in."""

OFFSETS_STAY: Final = (
    "kafka_members",
    "static_members",
    "consumer_members",
    "mixed_members",
    "kafka_transactors",
    "whole_restores",
)
"""Workloads whose judges expect committed offsets to stay: none of them is in worlds with `expiring_groups`."""

WITH_LOGINS: Final = ("tenants", "identities")
"""Workloads that are drawn in worlds with `principals` only."""

if TYPE_CHECKING:
    ClusterOptions = WorldOptions
else:
    ClusterOptions = make_dataclass(
        "ClusterOptions",
        [(name, kind, field(default=kind(0))) for name, (kind, _) in _OF_OTHERS.items()],
        bases=(WorldOptions,),
        namespace={
            "__module__": __name__,
            "__doc__": "One world, with how much it has of each fault and workload.",
        },
        frozen=True,
        slots=True,
    )


def draw_options(seed: int, profile: str | None = None, **overrides: Any) -> ClusterOptions:
    """The world of `seed`; `overrides` replace single options after the draw. Profile None: drawn too."""
    if profile is None:
        profile = Random(f"antiphon cluster profile {seed}").choice(PROFILES)
    invariant(profile in PROFILES, f"profile {profile} is none of {PROFILES}")
    of_others = {name: drawn for name, (_, drawn) in _OF_OTHERS.items() if drawn is not None}
    found = draw_all(seed, profile, {**_OF_WORLDS, **of_others}.items())
    if found["principals"]:  # whoever cannot log in stays away
        found |= dict.fromkeys(NEEDS_NO_LOGIN, 0)
    if not (found["principals"] and overrides.get("principals", True)):
        found |= dict.fromkeys(WITH_LOGINS, 0)  # they add to worlds with logins, and make no others
    if overrides.get("expiring_groups", found["expiring_groups"]):
        found |= dict.fromkeys(OFFSETS_STAY, 0)
    same: dict[str, Any] = {"seed": seed, "profile": profile, "replicas": 3, "settle_ms": 60_000}
    if overrides.get("split_loss_weight", found["split_loss_weight"]):
        # A split goes on without one of three replicas, and all else does without two nodes.
        found["nodes"] = same["replicas"] = 5
    return ClusterOptions(**{**same, **found, **overrides})
