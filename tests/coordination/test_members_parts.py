"""The parts of changing members, each alone: the table of steps, turns, and plans that even out by the fewest moves."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.coordination.balance import (
    Loads,
    even_leaders,
    even_replicas,
    takes_replicas,
    with_replicas,
    without_node,
)
from antiphon.coordination.cluster_records import ShardRecord, shard_record, topic_record
from antiphon.coordination.placement import NodeLoad
from antiphon.coordination.reconfiguration import Move, Turns
from antiphon.coordination.reconfiguration_steps import (
    Ask,
    CatchUp,
    Change,
    Elect,
    Facts,
    HandOver,
    Step,
    TakeTurn,
    Wait,
    follow,
    next_step,
)
from antiphon.coordination.state import ClusterState
from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.replication.members import Members

ALL = frozenset(range(10))


def shard(ensemble: tuple[int, ...] = (1, 2, 3), leader: int = 1, **more: Any) -> ShardMeta:
    status = ShardStatus.ONLINE if leader >= 0 else ShardStatus.ELECTION
    more.setdefault("live", ensemble)
    return ShardMeta(7, 0, ensemble, leader, term=4, status=status, members_version=5, **more)


def facts(caught_up: frozenset[int] = ALL, dead: tuple[int, ...] = (), **more: Any) -> Facts:
    return Facts(caught_up, lambda node: node not in dead, **more)


def after(step: Step) -> ShardMeta:
    assert isinstance(step, Change), step
    return step.meta


def test_s0_2_a_move_step_by_step() -> None:
    """Fed first, then joint, then told, then done; each record numbers the members anew."""
    meta = shard(goal=(1, 2, 4))
    assert isinstance(next_step(meta, facts()), Wait), "not before the leader has forgotten whoever left last"
    meta = after(next_step(meta, facts(told=True)))
    assert (meta.learners, meta.ensemble, meta.members_version) == ((4,), (1, 2, 3), 6)
    assert next_step(meta, facts(frozenset({1, 2, 3}))) == CatchUp((4,))
    meta = after(next_step(meta, facts()))
    assert (meta.ensemble, meta.outgoing, meta.learners) == ((1, 2, 4), (1, 2, 3), ())
    assert isinstance(next_step(meta, facts()), Wait), (
        "not before the leader says that the new voters have everything"
    )
    meta = after(next_step(meta, facts(told=True)))
    assert (meta.outgoing, meta.goal, meta.members_version) == ((), (1, 2, 4), 8)
    assert isinstance(next_step(meta, facts()), Wait), "not before the leader has heard"
    meta = after(next_step(meta, facts(told=True)))
    assert (meta.ensemble, meta.goal, meta.members_version) == ((1, 2, 4), (), 8)


def test_a_leader_that_goes_leads_until_the_new_voters_have_everything() -> None:
    meta = shard((2, 3, 4), goal=(2, 3, 4), outgoing=(1, 2, 3))
    step = next_step(meta, facts(told=True))
    assert isinstance(step, Change)
    assert step.elect


def test_nobody_steps_without_a_leader_or_out_of_turn() -> None:
    assert isinstance(next_step(shard(leader=-1, goal=(1, 2, 4)), facts()), Wait)
    assert next_step(shard(goal=(1, 2, 4)), facts(has_turn=False)) == TakeTurn()
    assert next_step(shard(goal=(1,)), facts(has_turn=False)) == TakeTurn()
    joint = shard((1,), goal=(1,), outgoing=(1, 2, 3))
    assert after(next_step(joint, facts(has_turn=False, told=True))).outgoing == (), (
        "what is joint is finished"
    )


def test_no_majority_of_the_new_voters_no_joint_step() -> None:
    step = next_step(shard(goal=(1, 4, 5), learners=(4, 5)), facts(dead=(5,)))
    assert step == CatchUp((5,))
    step = next_step(shard(goal=(1, 2)), facts(frozenset({1}), dead=(2,)))
    assert isinstance(step, Wait)
    assert "no majority" in step.reason


def test_a_goal_that_is_given_up_lets_go_of_its_learners() -> None:
    meta = after(next_step(shard(goal=(1, 2, 3), learners=(4,)), facts(has_turn=False)))
    assert meta.learners == ()


def test_an_order_alone_moves_leadership_once() -> None:
    meta = shard(goal=(2, 1, 3))
    assert next_step(meta, facts(told=True)) == Elect(2)
    done = after(next_step(meta, facts(told=True, tried_to_hand_over=True)))
    assert (done.ensemble, done.goal, done.leader) == ((2, 1, 3), (), 1), "and is content if it did not work"
    assert after(next_step(meta, facts(told=True, dead=(2,)))).goal == ()
    assert after(next_step(meta, facts(told=True, election="manual"))).goal == ()


def test_manual_leaders_are_never_taken_out() -> None:
    step = next_step(shard(goal=(2, 3, 4), learners=(4,)), facts(election="manual"))
    assert isinstance(step, Wait)
    assert "only an operator" in step.reason


def test_s3_29_under_the_live_rule_a_node_is_added_outright_and_dropped_with_its_liveness() -> None:
    meta = shard(goal=(1, 2, 4), learners=(4,), fence="live", live_version=3)
    meta = after(next_step(meta, facts()))
    assert (meta.ensemble, meta.outgoing, meta.live, meta.live_version) == ((1, 2, 3, 4), (), (1, 2, 3), 3)
    assert isinstance(next_step(meta, facts(told=True)), Wait), "not before its leader vouches for it"
    meta = shard((1, 2, 3, 4), goal=(1, 2, 4), fence="live", live_version=4)
    assert isinstance(next_step(meta, facts(told=True, min_live=4)), Wait), "too few would be left to commit"
    meta = after(next_step(meta, facts(told=True, min_live=3)))
    assert (meta.ensemble, meta.live, meta.live_version) == ((1, 2, 4), (1, 2, 4), 5)


def test_under_the_live_rule_leadership_moves_before_the_leader_goes() -> None:
    meta = shard((1, 2, 3, 4), goal=(2, 3, 4), fence="live", live_version=4)
    assert next_step(meta, facts(told=True)) == Elect(2)


def test_no_change_while_the_commit_rule_changes_or_the_shard_is_split() -> None:
    assert isinstance(next_step(shard(goal=(1, 2, 4), fence="both"), facts()), Wait)
    assert isinstance(next_step(shard(goal=(1, 2, 4)), facts(is_splitting=True)), Wait)


def test_where_replicas_vote_the_leader_is_asked_and_the_record_follows() -> None:
    now = Members((1, 2, 3))
    by_votes: dict[str, Any] = {"election": "raft"}
    meta = after(next_step(shard(goal=(2, 3, 4)), facts(reported=now, **by_votes)))
    assert meta.learners == (4,), "it gets a replica before the log names it"
    assert next_step(meta, facts(reported=now, **by_votes)) == Ask(Members((1, 2, 3), learners=(4,)))
    with_learner = Members((1, 2, 3), learners=(4,))
    assert next_step(meta, facts(frozenset({1, 2, 3}), reported=with_learner, **by_votes)) == CatchUp((4,))
    assert next_step(meta, facts(reported=with_learner, **by_votes)) == Ask(Members((2, 3, 4)))
    joint = Members((2, 3, 4), outgoing=(1, 2, 3))
    meta = follow(meta, joint)
    assert (set(meta.everybody), meta.outgoing) == ({1, 2, 3, 4}, (1,))
    assert isinstance(next_step(meta, facts(reported=joint, **by_votes)), Wait)
    meta = follow(shard((2, 3, 4), leader=3, goal=(2, 3, 4)), Members((2, 3, 4)))
    assert next_step(meta, facts(reported=Members((2, 3, 4)), **by_votes)) == HandOver(2)
    done = next_step(meta, facts(reported=Members((2, 3, 4)), tried_to_hand_over=True, **by_votes))
    assert after(done).goal == ()


def test_a_report_from_before_the_log_names_a_node_does_not_take_its_replica_away() -> None:
    meta = follow(shard(goal=(1, 2, 4), learners=(4,)), Members((1, 2, 3)))
    assert meta.learners == (4,)
    assert follow(shard(goal=(1, 2, 4)), Members((1, 2, 3))).learners == (), "nor give it one before its turn"


def test_who_may_be_a_voter_in_the_log_by_now_keeps_its_replica_when_the_goal_changes() -> None:
    meta = shard(learners=(4,), goal=(2, 3, 5))
    reported = Members((1, 2, 3), learners=(4,))
    by_votes: dict[str, Any] = {"election": "raft"}
    meta = after(next_step(meta, facts(reported=reported, **by_votes)))
    assert meta.learners == (5, 4), "the leader may have made node 4 a voter, and counts what it holds"
    assert next_step(meta, facts(reported=reported, **by_votes)) == Ask(Members((1, 2, 3), learners=(5,)))
    assert follow(meta, Members((1, 2, 3), learners=(5,))).learners == (5,), (
        "the log says that node 4 is none"
    )


def test_s4_22_writers_come_at_once_and_go_when_the_others_have_what_they_wrote() -> None:
    several: dict[str, Any] = {"is_multi": True, "election": "manual"}
    meta = after(next_step(shard(goal=(2, 3, 4)), facts(**several)))
    assert set(meta.ensemble) == {1, 2, 3, 4}
    meta = after(next_step(meta, facts(**several)))
    assert (meta.ensemble, meta.outgoing, meta.leader) == ((2, 3, 4), (1, 2, 3, 4), 2)
    assert isinstance(next_step(meta, facts(**several)), Wait)
    meta = after(next_step(meta, facts(told=True, **several)))
    assert (meta.everybody, meta.goal) == ((2, 3, 4), (2, 3, 4))
    assert after(next_step(meta, facts(**several))).goal == ()


def test_every_state_has_a_step_that_keeps_a_majority_in_common() -> None:
    """Of the sets that an election must ask, one stays the same from each record to the next."""
    sets = [(1,), (1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6, 7)]
    for ensemble in sets:
        for goal in sets:
            for learners in {(), tuple(n for n in goal if n not in ensemble)}:
                meta = shard(ensemble, ensemble[0], goal=goal, learners=learners)
                for told in (False, True):
                    step = next_step(meta, facts(told=told))
                    if isinstance(step, Change):
                        before = {frozenset(meta.ensemble), frozenset(meta.outgoing or meta.ensemble)}
                        new = step.meta
                        assert before & {frozenset(new.ensemble), frozenset(new.outgoing or new.ensemble)}


# -- turns ----------------------------------------------------------------------------------------------------------


@given(
    most=st.integers(1, 3),
    wants=st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=3), max_size=30),
    order=st.randoms(),
)
def test_everybody_gets_a_turn_and_no_node_has_too_many(most: int, wants: list[set[int]], order: Any) -> None:
    turns = Turns(most)
    moves = [Move(number, 0) for number in range(len(wants))]
    nodes = {move.shard_id: tuple(sorted(want)) for move, want in zip(moves, wants, strict=True)}
    ready, done, running = list(moves), set[int](), list[Move]()
    while ready or running:
        while ready:
            move = ready.pop(0)
            if move.turn or move.shard_id in done:
                continue
            if turns.take(move, nodes[move.shard_id], None, at_once=False):
                running.append(move)
            else:
                ready += turns.instead_of(move, nodes[move.shard_id])
            assert all(count <= most for count in turns.moving.values())
        if running:
            move = running.pop(order.randrange(len(running)))
            done.add(move.shard_id)
            ready += turns.give_back(move)
    assert done == set(nodes)
    assert not any(turns.moving.values())


# -- plans ----------------------------------------------------------------------------------------------------------


def cluster(
    nodes: int, ensembles: Sequence[tuple[int, ...]], leaders: Sequence[int] | None = None
) -> ClusterState:
    state = ClusterState()
    topic_id = bytes([1] * 16)
    records = [topic_record(TopicMeta("t", topic_id, Kind.TOPIC, 3, "oxia", ()))]
    for node in range(nodes):
        state.nodes[node] = NodeMeta(node, f"h:{node}")
    for number, ensemble in enumerate(ensembles):
        leader = ensemble[0] if leaders is None else leaders[number]
        meta = ShardMeta(number + 1, number, ensemble, leader, 1, ShardStatus.ONLINE, live=ensemble)
        records.append(shard_record(ShardRecord(topic_id, meta)))
    state.apply(records, 1)
    return state


def never(_shard: ShardMeta, _node: int) -> bool:
    return False


def always(_shard: ShardMeta) -> bool:
    return True


Ensembles = st.lists(st.permutations(range(6)).map(lambda order: tuple(order[:3])), min_size=1, max_size=40)


@given(Ensembles, st.integers(6, 8))
def test_replicas_are_evened_out_by_the_fewest_moves(ensembles: list[tuple[int, ...]], nodes: int) -> None:
    state = cluster(nodes, ensembles)
    before = {node: state.aimed_at.get(node, 0) for node in range(nodes)}
    goals = even_replicas(state, never)
    carried = dict(before)
    moves = 0
    for shard_id, goal in goals.items():
        old = state.shards[shard_id].meta.ensemble
        assert len(set(goal)) == 3
        assert goal[0] in goal
        for node in set(goal) - set(old):
            carried[node] += 1
            moves += 1
        for node in set(old) - set(goal):
            carried[node] -= 1
    low, extra = divmod(sum(before.values()), nodes)
    if max(carried.values()) - min(carried.values()) <= 1:
        ranked = sorted(before.values(), reverse=True)
        needed = sum(max(0, have - (low + (at < extra))) for at, have in enumerate(ranked))
        assert moves == needed
    assert max(carried.values()) <= max(before.values())
    assert min(carried.values()) >= min(before.values())


@given(Ensembles)
def test_leaderships_are_evened_out_within_what_ensembles_allow(ensembles: list[tuple[int, ...]]) -> None:
    state = cluster(6, ensembles, [min(ensemble) for ensemble in ensembles])
    goals = even_leaders(state, always, {})
    led = dict.fromkeys(range(6), 0)
    for shard_id, record in state.shards.items():
        goal = goals.get(shard_id, (record.meta.leader,))
        assert goal[0] in record.meta.ensemble
        led[goal[0]] += 1
    again = cluster(6, ensembles, [goals.get(n + 1, (min(e),))[0] for n, e in enumerate(ensembles)])
    assert not even_leaders(again, always, {}), "nothing is left to gain"
    before = [min(ensemble) for ensemble in ensembles]
    assert max(led.values()) <= max(before.count(node) for node in range(6))


def test_leaderships_are_passed_along_a_chain_where_no_single_one_can_go() -> None:
    state = cluster(3, [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2)], [0, 0, 0, 1, 1])
    goals = even_leaders(state, always, {})
    leaders = [goals.get(n + 1, (old,))[0] for n, old in enumerate([0, 0, 0, 1, 1])]
    assert sorted(leaders.count(node) for node in range(3)) == [1, 2, 2]


@given(Ensembles, st.integers(1, 6))
def test_replicas_grow_where_there_is_least_and_the_leader_stays(
    ensembles: list[tuple[int, ...]], replicas: int
) -> None:
    state = cluster(6, ensembles, [ensemble[1] for ensemble in ensembles])
    goals = with_replicas(state, list(state.shards), replicas)
    for shard_id, record in state.shards.items():
        goal = goals.get(shard_id, record.meta.ensemble)
        assert len(set(goal)) == len(goal) == replicas
        assert record.meta.leader in goal
        old = set(record.meta.ensemble)
        assert set(goal) <= old or set(goal) >= old, "nothing is moved that need not be"


def test_the_dead_and_the_draining_go_first_and_get_nothing() -> None:
    state = cluster(5, [(0, 1, 2)])
    state.nodes[2] = NodeMeta(2, "h", alive=False)
    state.nodes[4] = NodeMeta(4, "h", draining=True)
    assert takes_replicas(state) == [0, 1, 3]
    assert with_replicas(state, [1], 2) == {1: (0, 1)}
    assert with_replicas(state, [1], 4) == {1: (0, 1, 2, 3)}
    with pytest.raises(InvalidRequestError, match="node add"):
        with_replicas(state, [1], 5)


def test_a_drain_plans_anew_what_was_to_go_to_a_node_that_died() -> None:
    state = cluster(5, [(0, 1, 2)])
    [goal] = without_node(state, 0, never).values()
    assert 0 not in goal
    assert set(goal) > {1, 2}
    with pytest.raises(InvalidRequestError, match="election=manual"):
        without_node(state, 0, lambda meta, node: meta.leader == node)


def test_the_least_loaded_node_is_found_while_loads_change() -> None:
    loads = Loads(NodeLoad(node, 5 - node, 0) for node in range(4))
    for _ in range(6):
        node = loads.least([3])
        assert node is not None
        assert loads.replicas[node] == min(loads.replicas[other] for other in range(3))
        loads.change(node, 1)
    assert loads.replicas == {0: 6, 1: 6, 2: 6, 3: 2}
    assert loads.least([0, 1, 2, 3]) is None
