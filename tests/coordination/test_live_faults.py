"""Any mix of faults over topics of every kind: whoever is elected has everything that was committed (S3.9, S3.24, C1, C4).

The replicas are models that commit by the definition of each rule; the world checks each new leader's log against all that
any leader of the shard has ever committed, as well as everything it checks for the others.
"""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination.fences import Fence
from antiphon.model.metadata import ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic, ElectLeader
from tests.coordination.test_random_faults import disturb
from tests.coordination.test_random_faults import quieten as stop_faults
from tests.coordination.world import World

KINDS: dict[str, dict[str, str]] = {
    "live": {"commit": "live"},
    "two": {"commit": "live", "min.live": "2"},
    "most": {},
    "local": {"commit": "local", "accept.split.brain": "true"},
    "hand": {"election": "manual"},
    "hand-live": {"election": "manual", "commit": "live"},
    "votes": {"election": "raft"},
    "all-write": {"writers": "multi"},
}


def started(seed: int, nodes: int = 3, kinds: tuple[str, ...] = tuple(KINDS)) -> World:
    world = World(nodes, seed, model=True)
    world.start()
    for name in kinds:
        world.command(CreateTopic(name, shards=2, replicas=3, config=KINDS[name]))
    return world


def quieten(world: World) -> None:
    """All faults stop, and all must be well, and be so still when what was on its way has arrived."""
    world.heal_links()
    stop_faults(world)
    world.run(1_500)
    stop_faults(world)


def disturb_more(world: World, steps: int) -> None:
    """As `disturb`, with links that are cut, so that members lag under a leader that is well, and much writing."""
    random = world.random
    for step in range(steps):
        if random.random() < 0.3:
            one, other = random.sample(list(world.nodes), 2)
            world.cut_link(one, other)
        elif random.random() < 0.3:
            world.heal_links()
        for shard in list(world.state.shards):
            if random.random() < 0.5:
                world.write(shard, f"write {step}")
        disturb(world, random.randint(0, 2))


def switch(world: World) -> None:
    """Change the commit rule of a living topic, to the live set or from it."""
    name = world.random.choice(["live", "two", "most", "hand", "hand-live"])
    if name in world.state.topics and world.coordinator is not None:
        rule = world.random.choice(["live", "quorum", "at_least(2)"])
        world.command(AlterTopic(name, config={"commit": rule}))


def is_known(world: World, node: int) -> bool:
    """Has the coordinator heard of the node's newest process, and disk?"""
    return world.state.nodes[node] == world.nodes[node].meta()


def is_mended(world: World, node: int) -> bool:
    """Has the node got back what its logs had lost?"""
    return not world.nodes[node].disk.damaged & set(world.state.shards)


def fences_are_right(world: World) -> bool:
    return all(
        record.meta.fence == (Fence.LIVE if world.options.of(record.topic_id).is_live else Fence.MAJORITY)
        for record in world.state.shards.values()
        if record.meta.status is ShardStatus.ONLINE
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), nodes=st.sampled_from([3, 4, 5]), rounds=st.integers(1, 8))
def test_s3_24_whoever_is_elected_has_everything_that_was_committed(
    seed: int, nodes: int, rounds: int
) -> None:
    world = started(seed, nodes)
    for _ in range(rounds):
        disturb_more(world, 8)
        if world.random.random() < 0.4:
            switch(world)
    quieten(world)
    assert world.run(30_000, lambda: fences_are_right(world) and world.all_online())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), nodes=st.sampled_from([3, 5]))
def test_changing_to_the_live_rule_and_back_loses_nothing(seed: int, nodes: int) -> None:
    """Nothing but switches of one topic, in the middle of everything."""
    world = started(seed, nodes, ("live",))
    for step in range(12):
        for _ in range(3):
            for shard in list(world.state.shards):
                world.write(shard, f"write {step}")
            world.run(world.random.choice([5, 30, 100]))
        world.command(
            AlterTopic("live", config={"commit": world.random.choice(["live", "quorum"])})
        ) if world.coordinator is not None else None
        world.run(world.random.choice([0, 5, 20, 300]))
        disturb_more(world, 2)
    quieten(world)
    assert world.run(30_000, lambda: fences_are_right(world) and world.all_online())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_damaged_logs_and_replaced_disks_one_at_a_time_lose_nothing(seed: int) -> None:
    world = started(seed, 3, ("live", "two", "most"))
    for _ in range(4):
        disturb_more(world, 6)
        quieten(world)
        victim = world.random.choice(list(world.nodes))
        world.crash_node(victim, noticed=world.random.random() < 0.5)
        for shard in list(world.state.shards):
            world.write(shard, "while away")
        world.run(world.random.randint(1, 900))
        if world.random.random() < 0.5:
            world.damage(victim)
            world.start_node(victim)
        else:
            world.start_node(victim, new_disk=True)
        if world.random.random() < 0.5:
            world.run(world.random.randint(1, 300))
            world.crash_coordinator()
            world.run(100)
            world.start_coordinator()
        quieten(world)
        assert world.run(5_000, partial(is_known, world, victim))
        quieten(world)  # the coordinator knows of it by now
        assert world.run(5_000, partial(is_mended, world, victim))


@pytest.mark.parametrize("at", range(16))
def test_coordinator_crash_at_every_step_of_a_change_of_rule(at: int) -> None:
    world = started(at, 3, ("most", "live"))
    assert world.run(5_000, world.all_online)
    version = world.state.version
    world.command(AlterTopic("most", config={"commit": "live"}))
    world.command(AlterTopic("live", config={"commit": "quorum"}))
    world.run(2_000, lambda: world.state.version >= version + at)
    world.crash_coordinator()
    for shard in list(world.state.shards):
        world.write(shard, "meanwhile")
    world.run(200)
    world.start_coordinator()
    assert world.run(10_000, lambda: fences_are_right(world) and world.all_online())


def test_an_operator_may_ask_for_leaders_at_any_time() -> None:
    world = started(5)
    assert world.run(5_000, world.all_online)
    for shard, record in list(world.state.shards.items()):
        if world.options.of(record.topic_id).is_multi:
            continue
        for node in record.meta.ensemble:
            world.ask(ElectLeader(shard, node))
            assert world.state.shards[shard].meta.leader == node
    assert world.run(5_000, world.all_online)
