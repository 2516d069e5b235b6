"""Members of a group of Kafka's classic protocol in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS
from tests.simulation.told import each_mutant_is_seen, sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "kafka_producers": 1, "kafka_members": 3}
MOVES = {**CALM, "fault_ms": 6_000, "fault_every_ms": 400, "internal_elect_weight": 1}


@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_members_outlive_their_coordinators(profile: str) -> None:
    """`outlived`: in one generation a member is known to one coordinator, and then to another one."""
    done = sound_until(("joined", "committed", "outlived"), profile, 9_480_200, 12, **{**MOVES, **WORK})
    assert done["committed"] >= 4


@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_promises_are_kept_where_coordinators_are_cut_off(profile: str) -> None:
    sound_until(("joined", "committed"), profile, 9_480_300, **{**CUTS, **WORK})


test_a_mutant_is_seen = each_mutant_is_seen(
    "classic-", quick=("classic-in-memory-only", "classic-successor-knows-nobody")
)
