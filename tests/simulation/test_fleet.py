"""A fleet of modelled nodes under the product's coordinator: nobody is left without a leader who could have one."""

from antiphon.node.memory import FIRST, LongLived
from antiphon.simulation.fleet import Fleet, Phase
from antiphon.simulation.fleet_exercise import exercise

NODES, SHARDS = 80, 800
TABLE_SHARDS = 4  # of the table that every fresh cluster has


def test_every_shard_that_can_have_a_leader_gets_one_in_time() -> None:
    fleet = Fleet(NODES, SHARDS, racks=8, measured=False)
    lost: list[int] = []

    def look(phase: Phase) -> None:
        if "loses power" in phase.name:
            rack = {node.number for node in fleet.nodes if node.number % fleet.racks == 0}
            metas = [record.meta for record in fleet.state.shards.values()]
            lost.extend(meta.shard_id for meta in metas if len(rack.intersection(meta.ensemble)) > 1)
            assert lost
            assert phase.offline == len(lost), "those, and only those, that lost their majority"
            assert 500 < phase.gap(1.0) < 1_000, "silence tells, then one election"
        elif "quiet" in phase.name:
            assert (phase.commits, phase.elected) == (0, 0)
        elif "coordinator takes over" in phase.name:
            assert phase.elected == 0, "what works is left alone"
        else:
            assert phase.offline == 0

    phases = {phase.name: phase for phase in exercise(fleet, look)}
    assert phases["all shards are created"].elected == SHARDS
    assert phases["rolling restart of 20 nodes"].gap(1.0) < 60
    assert phases["the power of all nodes comes back at once"].elected >= SHARDS + TABLE_SHARDS
    assert all(len(record.meta.live) == 3 for record in fleet.state.shards.values())


def test_the_same_fleet_goes_the_same_way() -> None:
    def rows() -> list[tuple[str, float, int, int, float]]:
        fleet = Fleet(20, 100, measured=False)
        return [(p.name, p.ended_ms, p.events, p.commits, p.gap(1.0)) for p in exercise(fleet)]

    assert rows() == rows()


def test_memory_is_set_aside_whenever_it_has_doubled() -> None:
    long_lived = LongLived()
    counts = (1, FIRST - 1, FIRST, FIRST + 1, 2 * FIRST - 1, 2 * FIRST, 5 * FIRST)
    assert [long_lived.note_count(count) for count in counts] == [
        False,
        False,
        True,
        False,
        False,
        True,
        True,
    ]
