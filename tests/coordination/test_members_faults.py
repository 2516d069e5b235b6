"""Changes of members under any faults: nodes and coordinators crash at every step, and in any mix (S0.2).

The world checks after every step that a term has one leader, that terms never fall, that nothing is spoken before it is
committed, and that what was committed once is part of every later history.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.model.requests import (
    AdminRequest,
    AlterTopic,
    CreateTopic,
    DrainNode,
    ElectLeader,
    MoveReplica,
    Rebalance,
    RemoveNode,
)
from tests.coordination.members_world import MembersWorld

QUIET_MS = 120_000


def started(nodes: int, seed: int, shards: int, replicas: int, profile: str = "oxia") -> MembersWorld:
    world = MembersWorld(nodes, seed, moves=3)
    world.start()
    world.ask(CreateTopic("t", shards=shards, replicas=replicas, profile=profile))
    assert world.run(5_000, world.all_online)
    world.write_some()
    world.run(100)
    return world


def quieten(world: MembersWorld) -> None:
    """All faults stop, everybody comes back; every change must be finished and everything acknowledged be everywhere."""
    world.end_faults()
    assert world.run(QUIET_MS, world.settled), [
        (r.meta, r.untrusted, world.coordinator.changes.waits_for(s) if world.coordinator else "")
        for s, r in world.state.shards.items()
        if r.meta.goal or r.meta.outgoing or r.meta.learners or r.meta.status != "Online"
    ]
    world.run(1_000)
    world.write_some()
    assert world.run(5_000, world.committed_is_everywhere)
    assert world.running_hold_what_is_meant()
    assert world.coordinator is not None
    assert not world.coordinator.changes.moving, "every turn was given back"


CHANGES: dict[str, AdminRequest] = {
    "grow": AlterTopic("t", replicas=5),
    "shrink": AlterTopic("t", replicas=1),
    "drain": DrainNode(1),
    "rebalance": Rebalance(),
}


def first_shard(world: MembersWorld) -> int:
    return next(iter(world.state.shards_of[world.state.topics["t"].topic_id]))


def change_of(world: MembersWorld, name: str) -> AdminRequest:
    if name not in CHANGES:
        meta = world.meta(first_shard(world))
        gone = (
            meta.leader if name == "move the leader" else next(n for n in meta.ensemble if n != meta.leader)
        )
        return MoveReplica(meta.shard_id, gone, next(n for n in world.nodes if n not in meta.ensemble))
    return CHANGES[name]


@pytest.mark.parametrize("profile", ["oxia", "fluvio"])
@pytest.mark.parametrize("name", ["grow", "shrink", "drain", "move", "move the leader"])
@pytest.mark.parametrize("at", range(12))
def test_coordinator_crash_at_every_step(name: str, at: int, profile: str) -> None:
    """Crash after the n-th record of a change; the successor goes on from what the records say."""
    world = started(5, at, 1, 3, profile)
    world.command(change_of(world, name))
    version = world.state.version
    world.run(5_000, lambda: world.state.version >= version + at)
    world.crash_coordinator()
    world.write_some()
    world.run(300)
    world.start_coordinator()
    quieten(world)


@pytest.mark.parametrize("profile", ["oxia", "fluvio"])
@pytest.mark.parametrize("victim", range(5))
@pytest.mark.parametrize("at", range(10))
def test_crash_of_any_node_at_every_step(victim: int, at: int, profile: str) -> None:
    """Crash after the n-th record of a move of the leader, and of a node that holds one of its replicas, or is to."""
    world = started(5, 100 + at, 2, 3, profile)
    world.command(change_of(world, "move the leader"))
    version = world.state.version
    world.run(5_000, lambda: world.state.version >= version + at)
    world.write_some()
    world.crash_node(victim, noticed=bool(at % 2))
    world.run(world.random.choice([50, 900, 3_000]))
    world.write_some()
    world.start_node(victim, new_disk=at % 3 == 2)
    quieten(world)


def disturb(world: MembersWorld, steps: int) -> None:
    """Safety phase: anything may happen at any time."""
    random = world.random
    for step in range(steps):
        world.run(random.choice([1, 3, 10, 50, 200, 800]))
        kind = random.randint(0, 11)
        if world.trouble(kind):
            continue
        if 8 <= kind <= 10 and world.coordinator is not None:
            world.command(random_change(world))
        else:
            world.write(random.choice(list(world.state.shards)), f"write {step}")


def random_change(world: MembersWorld) -> AdminRequest:
    random = world.random
    shard = random.choice(list(world.state.shards))
    meta = world.meta(shard)
    node = random.choice(list(world.nodes))
    match random.randint(0, 6):
        case 0 | 1:
            return MoveReplica(shard, random.choice(meta.aim), node)
        case 2:
            return AlterTopic("t", replicas=random.randint(1, len(world.nodes)))
        case 3:
            return DrainNode(node, cancel=random.random() < 0.5)
        case 4:
            return ElectLeader(shard, random.choice([-1, *meta.ensemble]))
        case 5:
            return RemoveNode(node)
        case _:
            return Rebalance(leaders_only=random.random() < 0.5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    nodes=st.sampled_from([4, 5, 6]),
    steps=st.integers(10, 80),
    profile=st.sampled_from(["oxia", "fluvio"]),
)
def test_after_any_faults_every_change_is_finished_and_nothing_is_lost(
    seed: int, nodes: int, steps: int, profile: str
) -> None:
    world = started(nodes, seed, 3, 3, profile)
    disturb(world, steps)
    quieten(world)


def test_moves_that_wait_for_two_dead_nodes_do_not_call_each_other_for_ever() -> None:
    """Each waits for a node that the other one concerns too, and neither node has a turn to give away."""
    world = started(9, 1, 36, 3)
    coordinator = world.coordinator
    assert coordinator is not None
    metas = [world.meta(shard) for shard in world.state.shards_of[world.state.topics["t"].topic_id]]
    one, other, first, second = next(
        (one, other, first, second)
        for one in metas
        for other in metas
        for first in one.ensemble
        for second in other.ensemble
        if first not in (*other.ensemble, one.leader) and second not in (*one.ensemble, other.leader)
    )
    for leader in {one.leader, other.leader}:  # busy with as many moves as a node may have
        busy = [m for m in metas if leader == m.leader and m not in (one, other)]
        moves = 0
        for meta in busy:
            free = [
                n for n in world.nodes if n not in (*meta.ensemble, first, second, one.leader, other.leader)
            ]
            gone = [n for n in meta.ensemble if n not in (leader, first, second, one.leader, other.leader)]
            if free and gone and moves < 3:
                world.command(MoveReplica(meta.shard_id, gone[0], free[0]))
                moves += 1
        assert moves == 3
    world.command(MoveReplica(one.shard_id, first, second))
    world.command(MoveReplica(other.shard_id, second, first))
    for node in (first, second):
        world.crash_node(node)
    world.run(1_000)
    assert "not alive" in coordinator.changes.waits_for(one.shard_id)
    assert "not alive" in coordinator.changes.waits_for(other.shard_id)
    for node in (first, second):
        world.start_node(node)
    assert world.run(60_000, world.settled)
    assert second in world.meta(one.shard_id).ensemble
    assert first in world.meta(other.shard_id).ensemble
