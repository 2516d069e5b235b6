"""Bugs in the pure protocol, planted in whole nodes: those of `simulation.plants` that these worlds catch.

They have `node-` before the name that they have there.
"""

from typing import Any, Final

from antiphon.simulation.cluster.plant import ClusterPlant
from antiphon.simulation.cluster.plant_worlds import CRASHES, MOVES, TROUBLE
from antiphon.simulation.plants import PLANTS

_WORLDS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("h1-wrong-median", "raft", {**TROUBLE, "nodes": 4, "replicas": 4}),
    ("h2-over-counted-ack", "raft", CRASHES),
    ("h3-no-check-when-empty", "raft", MOVES),
    ("h5-unclipped-commit", "raft", CRASHES),
    ("ack-before-sync", "raft", TROUBLE),
    ("vote-before-sync", "raft", TROUBLE),
    ("ready-at-once", "raft", TROUBLE),
    ("vote-for-anyone", "raft", TROUBLE),
    ("lost-heartbeat-watermark", "raft", TROUBLE),
    ("any-head", "oxia", TROUBLE),
    ("forgotten-member", "oxia", TROUBLE),
    ("coordinator-grows-live", "fluvio", TROUBLE),
    ("stale-live-proposal", "fluvio", TROUBLE),
    ("no-joint-record", "oxia", MOVES),
    ("majority-will-do", "oxia", {**TROUBLE, "commit": "at_least(3)"}),
    ("acknowledged-is-settled", "tarantool", {**TROUBLE, "commit": "local"}),
    ("table-judges-by-store", "oxia", {**TROUBLE, "conditional_ppm": 600_000, "putters": 4}),
)

PROTOCOL_PLANTS: Final = tuple(
    ClusterPlant(f"node-{name}", PLANTS[name].description, PLANTS[name].patches, profile, options)
    for name, profile, options in _WORLDS
)
