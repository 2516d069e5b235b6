"""Changing who holds a shard while it lives: replicas added, dropped and moved, nodes drained and removed (S0.2)."""

from itertools import pairwise

import pytest

from antiphon.errors import InvalidRequestError, UnknownShardError
from antiphon.model.cluster import CommandDone
from antiphon.model.placement import PlaceReplicas
from antiphon.model.requests import (
    AlterTopic,
    CreateTopic,
    DrainNode,
    ElectLeader,
    MoveReplica,
    Rebalance,
    RemoveNode,
)
from tests.coordination.members_world import MembersWorld


def started(
    nodes: int = 4, seed: int = 1, *, shards: int = 1, replicas: int = 3, moves: int = 20
) -> MembersWorld:
    world = MembersWorld(nodes, seed, moves=moves)
    world.start()
    world.ask(CreateTopic("t", shards=shards, replicas=replicas))
    assert world.run(5_000, world.all_online)
    world.write_some()
    world.run(200)
    return world


def shards_of(world: MembersWorld, name: str = "t") -> list[int]:
    return list(world.state.shards_of[world.state.topics[name].topic_id])


def come_to_rest(world: MembersWorld, within_ms: int = 20_000) -> None:
    assert world.run(within_ms, world.settled), [
        (r.meta, world.coordinator.changes.waits_for(s) if world.coordinator else "")
        for s, r in world.state.shards.items()
    ]
    world.run(1_000)
    world.write_some()
    assert world.run(2_000, world.committed_is_everywhere)
    assert world.running_hold_what_is_meant()


def test_s0_2_a_replica_moves_while_the_shard_is_written_to() -> None:
    world = started()
    [shard] = shards_of(world)
    before = world.meta(shard).ensemble
    new = next(n for n in world.nodes if n not in before)
    gone = next(n for n in before if n != world.meta(shard).leader)
    assert isinstance(world.ask(MoveReplica(shard, gone, new)), CommandDone)
    assert world.meta(shard).goal
    while not world.settled():
        world.write_some()
        world.run(7)
        assert world.now_ms < 60_000
    after = world.meta(shard)
    assert set(after.ensemble) == (set(before) - {gone}) | {new}
    assert after.leader in before, "a leader that stays goes on leading"
    assert after.term == 1
    come_to_rest(world)


def test_s0_2_the_leader_itself_moves() -> None:
    world = started()
    [shard] = shards_of(world)
    meta = world.meta(shard)
    new = next(n for n in world.nodes if n not in meta.ensemble)
    world.ask(MoveReplica(shard, meta.leader, new))
    come_to_rest(world)
    after = world.meta(shard)
    assert meta.leader not in after.everybody
    assert new in after.ensemble
    assert after.term > meta.term


@pytest.mark.parametrize("path", [(3, 1), (1, 3), (3, 5), (5, 2), (2, 4), (3, 1, 3)])
def test_s0_2_replicas_up_and_down(path: tuple[int, ...]) -> None:
    world = started(6, shards=4, replicas=path[0])
    for wanted in path[1:]:
        assert isinstance(world.ask(AlterTopic("t", replicas=wanted)), CommandDone)
        come_to_rest(world)
        assert world.state.topics["t"].replicas == wanted
        assert all(len(world.meta(shard).ensemble) == wanted for shard in shards_of(world))


def test_every_step_is_a_record_and_the_sets_of_neighbours_meet() -> None:
    """What elections must ask never jumps: of any two records in a row, some set of both is the same or in both."""
    world = started(5)
    [shard] = shards_of(world)
    seen = [world.meta(shard)]
    world.ask(AlterTopic("t", replicas=5))
    while not world.settled():
        world.run(1)
        if world.meta(shard) != seen[-1]:
            seen.append(world.meta(shard))
    sets = [{meta.ensemble, meta.outgoing or meta.ensemble} for meta in seen]
    assert all({frozenset(s) for s in one} & {frozenset(s) for s in two} for one, two in pairwise(sets))
    assert any(meta.learners for meta in seen)
    assert any(meta.outgoing for meta in seen)


def test_a_drained_node_holds_nothing_and_gets_nothing() -> None:
    world = started(4, shards=12)
    assert isinstance(world.ask(DrainNode(1)), CommandDone)
    come_to_rest(world, 60_000)
    assert not world.state.shards_on.get(1)
    assert world.state.nodes[1].draining
    world.ask(CreateTopic("later", shards=4, replicas=3))
    assert not world.state.shards_on.get(1)
    world.crash_node(1)
    world.start_node(1)
    world.run(2_000)
    assert world.state.nodes[1].draining, "a restart does not undo what an operator has said"
    world.ask(DrainNode(1, cancel=True))
    assert not world.state.nodes[1].draining


def test_a_drain_with_nowhere_to_go_is_refused_and_changes_nothing() -> None:
    world = started(3, shards=2)
    before = {shard: world.meta(shard) for shard in world.state.shards}
    answer = world.ask(DrainNode(2))
    assert isinstance(answer, InvalidRequestError)
    assert "nowhere to go" in answer.message
    assert {shard: world.meta(shard) for shard in world.state.shards} == before
    assert not world.state.nodes[2].draining


def test_a_node_is_removed_when_it_is_empty_and_stopped_and_no_voter() -> None:
    world = started(5, shards=4)
    for node, why in ((0, "votes in `__cluster`"), (3, "drain 3"), (9, "no node 9")):
        answer = world.ask(RemoveNode(node))
        assert isinstance(answer, InvalidRequestError)
        assert why in answer.message
    world.ask(DrainNode(3))
    come_to_rest(world, 60_000)
    answer = world.ask(RemoveNode(3))
    assert isinstance(answer, InvalidRequestError)
    assert "stop its process" in answer.message
    world.crash_node(3)
    assert isinstance(world.ask(RemoveNode(3)), CommandDone)
    assert 3 not in world.state.nodes


def test_rebalance_after_a_node_was_added() -> None:
    world = started(3, shards=8)
    new = world.add_node()
    world.run(1_000)
    assert not world.state.shards_on.get(new)
    total = sum(len(r.meta.ensemble) for r in world.state.shards.values())
    world.ask(Rebalance())
    goals = sum(
        len(set(r.meta.goal) - set(r.meta.ensemble)) for r in world.state.shards.values() if r.meta.goal
    )
    assert goals == total // 4, "exactly what the new node should have is moved"
    come_to_rest(world, 60_000)
    world.ask(Rebalance(leaders_only=True))
    come_to_rest(world, 60_000)
    held = [len(world.state.shards_on.get(node, ())) for node in world.nodes]
    assert max(held) - min(held) <= 1
    led = world.leadership()
    assert max(led.values()) - min(led.get(node, 0) for node in world.nodes) <= 1
    world.ask(Rebalance())
    assert world.settled(), "nothing is left to do"


def test_leaders_alone_are_spread_by_the_fewest_elections() -> None:
    world = started(3, shards=9)
    for shard in world.state.shards:
        world.ask(ElectLeader(shard, 0))
    assert world.run(5_000, world.settled)
    terms = {shard: world.meta(shard).term for shard in world.state.shards}
    total = len(terms)
    world.ask(Rebalance(leaders_only=True))
    come_to_rest(world)
    led = world.leadership()
    assert max(led.values()) - min(led.values()) <= 1
    elected = sum(world.meta(shard).term > term for shard, term in terms.items())
    assert elected == total - led[0]


def test_commands_that_make_no_sense_are_refused() -> None:
    world = started()
    [shard] = shards_of(world)
    ensemble = world.meta(shard).ensemble
    new = next(n for n in world.nodes if n not in ensemble)
    assert isinstance(world.ask(MoveReplica(99, 0, 1)), UnknownShardError)
    for request, why in (
        (MoveReplica(shard, new, ensemble[0]), "has no replica"),
        (MoveReplica(shard, ensemble[0], ensemble[1]), "has a replica"),
        (MoveReplica(shard, ensemble[0], 77), "no node 77"),
        (AlterTopic("t", replicas=0), "1 to 31"),
        (AlterTopic("t", replicas=9), "there are 4"),
        (AlterTopic("t", replicas=2, shards=5), "one after the other"),
    ):
        answer = world.ask(request)
        assert isinstance(answer, InvalidRequestError), request
        assert why in answer.message
    world.crash_node(new)
    answer = world.ask(MoveReplica(shard, ensemble[0], new))
    assert isinstance(answer, InvalidRequestError)
    assert "not alive" in answer.message


def test_a_goal_whose_node_died_waits_says_so_and_gives_way_to_another() -> None:
    world = started(5)
    [shard] = shards_of(world)
    meta = world.meta(shard)
    first, second = (n for n in world.nodes if n not in meta.ensemble)
    gone = next(n for n in meta.ensemble if n != meta.leader)
    world.ask(MoveReplica(shard, gone, first))
    world.crash_node(first)
    world.run(3_000)
    assert world.coordinator is not None
    assert f"node {first}, which is not alive" in world.coordinator.changes.waits_for(shard)
    assert world.meta(shard).ensemble == meta.ensemble
    spoken = len(world.spoken)
    world.run(20_000)
    assert len(world.spoken) - spoken < 100, "repeats are bounded"
    world.ask(MoveReplica(shard, first, second))
    come_to_rest(world)
    assert second in world.meta(shard).ensemble
    assert first not in world.meta(shard).everybody


def test_members_are_not_reduced_to_those_who_can_elect_nobody() -> None:
    """A damaged replica that keeps up is no vote before a term has begun since: with one other it elects nobody."""
    world = started(3)
    [shard] = shards_of(world)
    meta = world.meta(shard)
    hurt, other = (node for node in meta.ensemble if node != meta.leader)
    world.crash_node(hurt)
    world.damage(hurt)
    world.start_node(hurt)
    world.run(1_000)
    world.write_some()
    world.run(1_000)
    assert world.nodes[hurt].replicas[shard].damaged
    world.crash_node(other)  # who is dead goes first
    world.ask(AlterTopic("t", replicas=2))
    world.start_node(other)
    world.run(3_000)
    assert world.coordinator is not None
    assert "no majority" in world.coordinator.changes.waits_for(shard)
    assert world.meta(shard).goal
    assert set(world.meta(shard).ensemble) == set(meta.ensemble)
    for each in world.state.shards:
        world.ask(ElectLeader(each))  # as the damaged replicas' node asks
    come_to_rest(world)
    assert set(world.meta(shard).ensemble) == {meta.leader, hurt}
    assert isinstance(world.ask(ElectLeader(shard)), CommandDone)


def test_who_was_elected_with_a_damaged_member_does_not_vouch_for_it() -> None:
    world = started(3)
    [shard] = shards_of(world)
    meta = world.meta(shard)
    hurt = next(node for node in meta.ensemble if node != meta.leader)
    world.crash_node(hurt)
    world.damage(hurt)
    world.start_node(hurt)
    world.run(1_000)
    world.ask(ElectLeader(shard))
    assert world.meta(shard).term == 2
    assert world.meta(shard).live
    assert hurt not in world.meta(shard).live
    assert world.run(5_000, lambda: hurt in world.meta(shard).live), "mended in this term"


def test_a_goal_whose_node_comes_back_goes_on() -> None:
    world = started(4)
    [shard] = shards_of(world)
    meta = world.meta(shard)
    new = next(n for n in world.nodes if n not in meta.ensemble)
    gone = next(n for n in meta.ensemble if n != meta.leader)
    world.ask(MoveReplica(shard, gone, new))
    world.crash_node(new)
    world.run(3_000)
    world.start_node(new, new_disk=True)
    come_to_rest(world)
    assert new in world.meta(shard).ensemble


def test_few_shards_of_a_node_move_at_a_time() -> None:
    world = started(5, shards=60, moves=3)
    world.most_learners = 0
    world.ask(DrainNode(0))
    most = 0
    while not world.settled():
        world.run(10)
        assert world.coordinator is not None
        most = max([most, *world.coordinator.changes.moving.values()])
        assert world.now_ms < 300_000
    assert most == 3
    assert world.most_learners <= 3
    assert not world.state.shards_on.get(0)
    come_to_rest(world)


def test_a_dead_target_does_not_hold_up_the_others() -> None:
    world = started(6, shards=40, moves=2)
    world.ask(DrainNode(0))
    world.run(50)
    world.crash_node(5)
    world.run(120_000)
    left = [s for s in world.state.shards_on.get(0, ()) if 5 not in world.meta(s).goal]
    assert not left, "what goes elsewhere has gone"
    world.ask(DrainNode(0))  # plans anew what was to go to the dead node
    world.start_node(5)
    come_to_rest(world, 120_000)
    assert not world.state.shards_on.get(0)


def test_a_joint_step_is_finished_before_a_new_goal_is_begun() -> None:
    world = started(5)
    [shard] = shards_of(world)
    meta = world.meta(shard)
    first, second = (n for n in world.nodes if n not in meta.ensemble)
    gone = next(n for n in meta.ensemble if n != meta.leader)
    world.ask(MoveReplica(shard, gone, first))
    assert world.run(5_000, lambda: bool(world.meta(shard).outgoing))
    joint = world.meta(shard)
    world.ask(MoveReplica(shard, first, second))
    assert world.run(5_000, lambda: world.meta(shard).outgoing != joint.outgoing)
    assert not world.meta(shard).outgoing
    assert set(world.meta(shard).ensemble) == set(joint.ensemble)
    come_to_rest(world)
    assert second in world.meta(shard).ensemble


def test_a_drain_that_is_taken_back_leaves_what_has_not_moved() -> None:
    world = started(4, shards=30, moves=1)
    world.ask(DrainNode(0))
    world.run(300)
    world.ask(DrainNode(0, cancel=True))
    come_to_rest(world, 60_000)
    assert world.state.shards_on.get(0)
    assert not world.state.nodes[0].draining


def test_s0_2_a_node_that_is_replaced_with_an_empty_disk_fills_up_again() -> None:
    world = started(3, shards=3)
    for victim in (1, 2, 0):
        world.crash_node(victim)
        world.run(300)
        world.write_some()
        world.run(1_000)
        world.start_node(victim, new_disk=True)
        come_to_rest(world, 60_000)
        assert not any(record.untrusted for record in world.state.shards.values())


@pytest.mark.parametrize("seed", range(12))
def test_who_leaves_and_comes_back_at_once_is_fed_anew(seed: int) -> None:
    """What it had acknowledged is gone with the replica that it gave up, in the same term, too."""
    world = started(5, seed)
    [shard] = shards_of(world)
    for _ in range(6):
        world.ask(AlterTopic("t", replicas=world.random.choice([1, 2])))
        world.run(world.random.choice([1, 5, 20, 60]))
        world.write_some()
        world.ask(AlterTopic("t", replicas=world.random.choice([3, 5])))
        world.run(world.random.choice([1, 5, 20, 60, 400]))
        world.write_some()
    come_to_rest(world)
    kept = list(world.committed[shard])
    world.crash_node(world.meta(shard).leader)
    assert world.run(5_000, world.all_online)
    assert world.committed[shard][: len(kept)] == kept


def test_a_shard_moves_to_the_nodes_that_are_named_and_the_first_leads() -> None:
    world = started(6)
    [shard] = shards_of(world)
    before = world.meta(shard).ensemble
    others = tuple(node for node in world.nodes if node not in before)
    assert isinstance(world.ask(PlaceReplicas(shard, others)), CommandDone)
    come_to_rest(world)
    after = world.meta(shard)
    assert (after.ensemble, after.leader) == (others, others[0])
    turned = (others[2], others[0], others[1])
    assert isinstance(world.ask(PlaceReplicas(shard, turned)), CommandDone)
    come_to_rest(world)
    assert (world.meta(shard).ensemble, world.meta(shard).leader) == (turned, turned[0])


@pytest.mark.parametrize("after_ms", [0, 1, 5, 20, 60, 200])
def test_a_placement_is_taken_back_whenever_that_is_asked(after_ms: int) -> None:
    world = started(6)
    [shard] = shards_of(world)
    before = world.meta(shard).ensemble
    others = tuple(node for node in world.nodes if node not in before)
    world.ask(PlaceReplicas(shard, others))
    world.run(after_ms)
    moving = world.meta(shard)
    assert isinstance(world.ask(PlaceReplicas(shard)), CommandDone)
    come_to_rest(world, 60_000)
    went = set(moving.ensemble) == set(others) and not moving.outgoing
    assert set(world.meta(shard).ensemble) == set(others if went else before)


def test_all_shards_of_a_topic_get_another_number_of_replicas_by_hand() -> None:
    world = started(4, shards=2)
    one, two = shards_of(world)
    nodes = tuple(sorted(world.nodes))[:4]
    world.ask(PlaceReplicas(one, nodes[:2]))
    assert world.state.topics["t"].replicas == 3
    world.ask(PlaceReplicas(two, nodes[2:]))
    assert world.state.topics["t"].replicas == 2
    come_to_rest(world)
    assert [world.meta(shard).ensemble for shard in (one, two)] == [nodes[:2], nodes[2:]]


def test_placements_that_cannot_be_are_refused_and_change_nothing() -> None:
    world = started(5)
    [shard] = shards_of(world)
    before = world.meta(shard)
    away = next(node for node in world.nodes if node not in before.ensemble)
    draining = next(node for node in world.nodes if node not in {*before.ensemble, away})
    world.ask(DrainNode(draining))
    world.crash_node(away)
    world.run(5_000)
    first = before.ensemble[0]
    assert isinstance(world.ask(PlaceReplicas(99, (first,))), UnknownShardError)
    for nodes, why in (
        ((first, first), "one replica at most"),
        ((first, 77), "no node 77"),
        ((first, away), "not alive"),
        ((first, draining), "draining"),
        (tuple(range(40)), "not 40"),
    ):
        answer = world.ask(PlaceReplicas(shard, nodes))
        assert isinstance(answer, InvalidRequestError)
        assert why in answer.message
    assert isinstance(world.ask(PlaceReplicas(shard)), CommandDone), "nothing to take back"
    assert world.meta(shard).goal == ()


def test_new_shards_are_placed_by_hand() -> None:
    world = started(5)
    a, b, c, d, _ = sorted(world.nodes)
    made = CreateTopic("placed", shards=2, placement=((c, a), (d, b)))
    assert isinstance(world.ask(made), CommandDone)
    assert [world.meta(shard).ensemble for shard in shards_of(world, "placed")] == [(c, a), (d, b)]
    assert world.state.topics["placed"].replicas == 2
    assert isinstance(world.ask(AlterTopic("placed", shards=3, placement=((b, c),))), CommandDone)
    assert world.meta(shards_of(world, "placed")[2]).ensemble == (b, c)
    for wrong, why in (
        (CreateTopic("x", shards=2, placement=((a, b),)), "for 1 shards"),
        (CreateTopic("x", shards=2, placement=((a, b), (a,))), "each has 2"),
        (CreateTopic("x", placement=((a, a),)), "one replica at most"),
        (CreateTopic("x", placement=((a, 77),)), "no node 77"),
        (AlterTopic("placed", shards=4, placement=((b, c, d),)), "each has 2"),
    ):
        answer = world.ask(wrong)
        assert isinstance(answer, InvalidRequestError), wrong
        assert why in answer.message
