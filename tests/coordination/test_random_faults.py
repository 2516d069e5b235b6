"""Any mix of node deaths, returns, replaced disks, lost messages and coordinator crashes, then quiet: everything is online.

The world checks after every step that a term of a shard has one leader, that terms never fall, that nothing is spoken before
it is committed, and that replicas agree on what is committed.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination.state import ClusterState
from antiphon.model.requests import AlterTopic, CreateTopic, DeleteTopic, ElectLeader
from tests.coordination.world import World

QUIET_MS = 90_000  # promotion time-outs double while things go wrong


def quieten(world: World) -> None:
    """All faults stop, everybody comes back, and all must be well."""
    world.end_faults()
    assert world.run(QUIET_MS, world.all_online), {
        s: (r.meta, r.untrusted) for s, r in world.state.shards.items()
    }


def disturb(world: World, steps: int) -> None:
    """Safety phase: anything may happen at any time."""
    random = world.random
    for step in range(steps):
        world.run(random.choice([1, 3, 10, 50, 200, 800]))
        kind = random.randint(0, 9)
        if world.trouble(kind):
            continue
        if kind == 8 and world.coordinator is not None:
            command(world, step)
        elif world.state.shards:
            world.write(random.choice(list(world.state.shards)), f"write {step}")


def command(world: World, step: int) -> None:
    random = world.random
    shards = list(world.state.shards)
    names = [name for name in world.state.topics if name != "default"]
    match random.randint(0, 3):
        case 0:
            world.command(CreateTopic(f"t{step}", shards=random.randint(1, 4)))
        case 1 if shards:
            shard = random.choice(shards)
            world.command(ElectLeader(shard, random.choice([-1, *world.state.shards[shard].meta.ensemble])))
        case 2 if names:
            world.command(DeleteTopic(random.choice(names)))
        case _:
            if names:
                world.command(AlterTopic(random.choice(names), shards=random.randint(2, 6)))


def started(nodes: int, seed: int) -> World:
    world = World(nodes, seed)
    world.start()
    world.command(CreateTopic("t", shards=5, replicas=3))
    return world


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), nodes=st.sampled_from([3, 4, 5]), steps=st.integers(10, 80))
def test_after_any_faults_every_shard_comes_online(seed: int, nodes: int, steps: int) -> None:
    world = started(nodes, seed)
    disturb(world, steps)
    quieten(world)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_disk_replaced_at_a_time_loses_nothing(seed: int) -> None:
    world = started(3, seed)
    for _ in range(4):
        disturb(world, 8)
        quieten(world)
        victim = world.random.choice(list(world.nodes))
        world.crash_node(victim)
        for shard in list(world.state.shards):
            world.write(shard, "while away")
        world.run(world.random.randint(1, 900))
        world.start_node(victim, new_disk=True)
        if world.random.random() < 0.5:
            world.run(world.random.randint(1, 300))
            world.crash_coordinator()
            world.run(100)
            world.start_coordinator()
        quieten(world)
        assert not any(record.untrusted for record in world.state.shards.values())


@pytest.mark.parametrize("at", range(12))
def test_coordinator_crash_at_every_step_of_a_fail_over(at: int) -> None:
    """Crash after the n-th commit of a leader's loss; the successor finishes what it left open."""
    world = started(3, at)
    assert world.run(5_000, world.all_online)
    coordinator = world.coordinator
    assert coordinator is not None
    version = world.state.version
    world.crash_node(0)
    world.run(2_000, lambda: world.state.version >= version + at)
    world.crash_coordinator()
    world.run(200)
    world.start_coordinator(lost=(0,))
    assert world.run(10_000, world.all_online)
    assert 0 not in world.leadership()


def test_same_seed_same_history() -> None:
    def history(seed: int) -> tuple[int, list[object]]:
        world = started(3, seed)
        disturb(world, 60)
        quieten(world)
        return world.now_ms, [(to, str(message)) for to, message in world.spoken]

    assert history(7) == history(7)


def test_fold_of_the_log_is_what_the_coordinator_decided() -> None:
    """The committed records alone rebuild the state, and deltas carry it to a node's view."""
    world = started(4, 3)
    disturb(world, 50)
    quieten(world)
    world.run(1_000)
    coordinator = world.coordinator
    assert coordinator is not None
    assert isinstance(world.state, ClusterState)
    for name in ("nodes", "topics", "shards", "counters", "cluster", "names", "shards_of"):
        assert getattr(coordinator.model, name) == getattr(world.state, name), name
    led = {node: count for node, count in world.state.led_by.items() if count}
    assert led == world.leadership()
