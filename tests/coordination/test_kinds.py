"""Shards that are led in other ways: by vote, by appointment, by everybody; joint voters; changes of the commit rule."""

from typing import Any

import msgspec
import pytest

from antiphon.coordination.cluster_records import shard_record
from antiphon.coordination.fences import Fence, can_be_met, electable, in_order, voting
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.model.cluster import CommandDone, LiveSet
from antiphon.model.metadata import ShardMeta, ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic, ElectLeader, MoveReplica
from antiphon.records.entry_id import EntryId
from antiphon.replication.members import Members
from antiphon.replication.messages import BecomeLeader, ChangeMembers, NewTerm, StaleTerm, TransferLeadership
from tests.coordination.world import World


def started(
    config: dict[str, str], nodes: int = 3, shards: int = 1, profile: str = "oxia", seed: int = 1
) -> World:
    world = World(nodes, seed, model=True)
    world.start()
    answer = world.ask(CreateTopic("t", shards=shards, replicas=3, profile=profile, config=config))
    assert isinstance(answer, CommandDone), answer
    return world


def meta_of(world: World) -> ShardMeta:
    return world.state.shards[max(world.state.shards)].meta


# -- fences -------------------------------------------------------------------------------------------------------


def heads(**by_node: int) -> dict[int, EntryId]:
    """n1=5 is node 1 with a log up to offset 5 of term 3."""
    return {int(name[1:]): EntryId(3, offset) for name, offset in by_node.items()}


def test_a_joint_election_needs_a_majority_of_each_set() -> None:
    meta = ShardMeta(1, 0, (4, 5, 6), outgoing=(1, 2, 3))
    assert voting(meta) == (4, 5, 6, 1, 2, 3)
    assert not can_be_met(meta, [4, 5, 6, 1])
    assert can_be_met(meta, [4, 5, 1, 2])
    assert electable(meta, heads(n4=9, n5=9, n6=9, n1=9)) == []
    assert electable(meta, heads(n4=9, n5=9, n1=9, n2=9)) == [4, 5]


def test_a_voter_on_its_way_out_leads_only_when_no_other_can() -> None:
    meta = ShardMeta(1, 0, (4, 5, 6), outgoing=(1, 2, 3))
    assert electable(meta, heads(n4=7, n5=7, n6=7, n1=9, n2=9, n3=9)) == [1, 2, 3], (
        "4 to 6 lack what 1 to 3 committed"
    )
    assert electable(meta, heads(n4=7, n5=7, n6=9, n1=9, n2=8, n3=7)) == [6]


def test_the_live_fence_goes_by_its_members_alone() -> None:
    meta = ShardMeta(1, 0, (1, 2, 3), live=(2,), fence=Fence.LIVE)
    assert can_be_met(meta, [2])
    assert not can_be_met(meta, [1, 3])
    assert electable(meta, heads(n1=9, n2=5, n3=9)) == [2], "what others have more was never committed"


def test_both_fences_need_a_majority_and_a_live_member_that_is_not_exceeded() -> None:
    meta = ShardMeta(1, 0, (1, 2, 3), live=(3,), fence=Fence.BOTH)
    assert not can_be_met(meta, [1, 2])
    assert not can_be_met(meta, [3])
    assert electable(meta, heads(n1=9, n2=9)) == [], "nobody knows what 3 has"
    assert electable(meta, heads(n1=9, n3=5)) == [1], "it has all that 3 has, and a majority has no more"
    assert electable(meta, heads(n1=9, n2=9, n3=10)) == [3]
    assert in_order(meta, (3, 1, 7)) == (1, 3)


# -- by vote ------------------------------------------------------------------------------------------------------


def test_shards_that_vote_are_created_when_their_leaders_are_known() -> None:
    world = World(3, model=True)
    world.start()
    token = world.command(CreateTopic("t", shards=4, replicas=3, profile="raft"))
    world.run(100)
    assert token not in world.answers
    assert {record.meta.status for record in list(world.state.shards.values())[-4:]} == {ShardStatus.ELECTION}
    assert world.run(2_000, lambda: token in world.answers)
    assert isinstance(world.answers[token], CommandDone)
    for shard in world.state.topic_with_shards("t").shards:
        voters = world.voters[shard.shard_id]
        assert (shard.leader, shard.term) == (voters.leader, voters.term)


def test_a_lost_leader_that_was_voted_for_is_absent_until_another_reports() -> None:
    world = started({}, profile="raft")
    old = meta_of(world)
    world.spoken.clear()
    world.crash_node(old.leader)
    assert world.run(100, lambda: meta_of(world).status is ShardStatus.ELECTION)
    assert (meta_of(world).leader, meta_of(world).term) == (-1, old.term)
    assert world.run(3_000, lambda: meta_of(world).status is ShardStatus.ONLINE)
    assert meta_of(world).term > old.term
    assert not [m for _, m in world.spoken if m.shard == old.shard_id], "the coordinator has no say in it"


def test_too_few_voters_are_offline_and_no_old_leader_counts() -> None:
    world = started({}, profile="raft")
    old = meta_of(world)
    one, two = (node for node in old.ensemble if node != old.leader)
    world.voters[old.shard_id].step = lambda *_: None  # type: ignore[method-assign]
    world.crash_node(one)
    world.crash_node(two)
    world.run(500)
    assert (meta_of(world).status, meta_of(world).leader) == (ShardStatus.OFFLINE, -1)
    world.start_node(one)
    assert world.run(1_000, lambda: meta_of(world).leader == old.leader)


def test_reports_of_older_terms_and_stale_replicas_change_nothing() -> None:
    world = started({}, profile="raft")
    old = meta_of(world)
    world.voters[old.shard_id].step = lambda *_: None  # type: ignore[method-assign]
    coordinator = world.coordinator
    assert coordinator is not None
    other = next(node for node in old.ensemble if node != old.leader)
    world.spoken.clear()
    late = LiveSet(old.shard_id, old.term - 1, old.ensemble)
    world.act(coordinator.live_sets(other, (late,), world.now_ms))
    world.act(coordinator.receive(other, StaleTerm(old.shard_id, old.term + 7), world.now_ms))
    world.run(500)
    assert (meta_of(world).leader, meta_of(world).term) == (old.leader, old.term)
    assert not [m for _, m in world.spoken if m.shard == old.shard_id]


def test_electing_where_replicas_vote_asks_the_leader_to_hand_over() -> None:
    world = started({}, profile="raft")
    old = meta_of(world)
    wanted = next(node for node in old.ensemble if node != old.leader)
    world.spoken.clear()
    assert isinstance(world.ask(ElectLeader(old.shard_id, wanted)), CommandDone)
    assert meta_of(world).leader == wanted
    asked = [(to, m) for to, m in world.spoken if isinstance(m, TransferLeadership)]
    assert asked == [(old.leader, TransferLeadership(old.shard_id, old.term, wanted))]
    assert isinstance(world.ask(ElectLeader(old.shard_id)), CommandDone)
    assert meta_of(world).leader != wanted, "somebody else, who keeps up"


def test_a_hand_over_that_does_not_happen_is_an_error() -> None:
    world = started({}, profile="raft")
    old = meta_of(world)
    wanted = next(node for node in old.ensemble if node != old.leader)
    original = world._to_replica

    def lose(sender: int, to: int, message: Any) -> None:
        if not isinstance(message, TransferLeadership):
            original(sender, to, message)

    world._to_replica = lose  # type: ignore[method-assign]
    answer = world.ask(ElectLeader(old.shard_id, wanted), within_ms=6_000)
    assert isinstance(answer, UnavailableError)
    assert f"did not reach node {wanted}" in answer.message
    world.crash_node(old.leader)
    world.run(20)
    assert isinstance(world.ask(ElectLeader(old.shard_id, wanted)), UnavailableError), (
        "nobody could hand over"
    )


def test_a_new_coordinator_believes_what_voters_have_done_meanwhile() -> None:
    world = started({}, profile="raft", shards=6)
    world.crash_coordinator()
    world.crash_node(0)
    world.run(2_000)
    world.spoken.clear()
    world.start_coordinator(lost=(0,))
    assert world.run(3_000, world.all_online)
    for shard in world.state.topic_with_shards("t").shards:
        assert shard.leader == world.voters[shard.shard_id].leader
    ids = {shard.shard_id for shard in world.state.topic_with_shards("t").shards}
    assert not [m for _, m in world.spoken if m.shard in ids and isinstance(m, NewTerm | BecomeLeader)]


def test_a_leader_is_asked_for_members_only_when_the_record_of_them_is_committed() -> None:
    world = started({}, nodes=4, profile="raft")
    old = meta_of(world)
    coordinator = world.coordinator
    assert coordinator is not None
    word = LiveSet(old.shard_id, old.term, old.ensemble, voters=old.ensemble)
    world.act(coordinator.live_sets(old.leader, (word,), world.now_ms))
    new = next(node for node in range(4) if node not in old.ensemble)
    world.command(MoveReplica(old.shard_id, old.ensemble[-1], new))
    world.spoken.clear()
    for later_ms in (0, 3_000, 6_000):  # no time passes in the world, so nothing is committed
        world.act(coordinator.live_sets(old.leader, (word,), world.now_ms + later_ms))
    assert world.proposals
    assert not [m for _, m in world.spoken if isinstance(m, ChangeMembers)]
    assert world.run(3_000, lambda: any(isinstance(m, ChangeMembers) for _, m in world.spoken))


def test_learners_that_are_reported_when_no_change_is_under_way_are_let_go_of_again() -> None:
    world = started({}, nodes=4, profile="raft")
    old = meta_of(world)
    new = next(node for node in range(4) if node not in old.ensemble)
    coordinator = world.coordinator
    assert coordinator is not None
    world.spoken.clear()
    late = LiveSet(old.shard_id, old.term, old.ensemble, voters=old.ensemble, learners=(new,))
    world.act(coordinator.live_sets(old.leader, (late,), world.now_ms))
    assert world.run(200, lambda: meta_of(world).learners == (new,)), (
        "they hold a replica, and the record says so"
    )
    world.run(5_000)
    asked = [(to, m.members) for to, m in world.spoken if isinstance(m, ChangeMembers)]
    assert (old.leader, Members(old.ensemble)) in asked
    done = LiveSet(old.shard_id, old.term, old.ensemble, voters=old.ensemble)
    world.act(coordinator.live_sets(old.leader, (done,), world.now_ms))
    assert world.run(200, lambda: not meta_of(world).learners)
    world.spoken.clear()
    world.run(60_000)
    assert not [m for _, m in world.spoken if isinstance(m, ChangeMembers)], "it is over"


# -- by appointment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["quorum", "live", "at_least(2)"])
def test_c4_a_leader_by_appointment_is_the_first_of_the_ensemble_and_nobody_takes_its_place(
    commit: str,
) -> None:
    world = started({"election": "manual", "commit": commit})
    old = meta_of(world)
    assert old.leader == old.ensemble[0]
    world.crash_node(old.leader)
    world.run(30_000)
    assert (meta_of(world).status, meta_of(world).leader) == (ShardStatus.OFFLINE, -1)
    world.start_node(old.leader)
    assert world.run(5_000, world.all_online)
    assert meta_of(world).leader == old.leader
    assert meta_of(world).term > old.term


@pytest.mark.parametrize("commit", ["quorum", "live"])
def test_c4_an_operator_appoints_another(commit: str) -> None:
    world = started({"election": "manual", "commit": commit})
    old = meta_of(world)
    world.crash_node(old.leader)
    world.run(500)
    wanted = old.ensemble[2]
    assert isinstance(world.ask(ElectLeader(old.shard_id, wanted)), CommandDone)
    assert meta_of(world).leader == wanted
    world.start_node(old.leader)
    world.run(2_000)
    assert meta_of(world).leader == wanted, "who came back follows"
    world.crash_node(wanted)
    world.run(5_000)
    assert meta_of(world).status is ShardStatus.OFFLINE
    world.crash_coordinator()
    world.start_coordinator(lost=(wanted,))
    world.run(2_000)
    assert meta_of(world).status is ShardStatus.OFFLINE, "the next coordinator knows who was appointed"
    world.start_node(wanted)
    assert world.run(5_000, world.all_online)
    assert meta_of(world).leader == wanted


def test_c4_who_was_appointed_and_did_not_answer_stays_appointed() -> None:
    """With the live rule its election has made it the only live one: nobody else could lead."""
    world = started({"election": "manual", "commit": "live"})
    old = meta_of(world)
    wanted = old.ensemble[1]
    original = world._to_replica
    lost: list[int] = []

    def lose_once(sender: int, to: int, message: Any) -> None:
        if isinstance(message, BecomeLeader) and message.shard == old.shard_id and not lost:
            lost.append(to)
            return
        original(sender, to, message)

    world._to_replica = lose_once  # type: ignore[method-assign]
    assert isinstance(
        world.ask(ElectLeader(old.shard_id, wanted), within_ms=10_000), CommandDone | UnavailableError
    )
    assert world.run(10_000, world.all_online)
    assert lost == [wanted]
    assert meta_of(world).leader == wanted


def test_c4_who_is_to_take_over_and_lacks_entries_does_not_leave_the_shard_without_its_leader() -> None:
    world = started({"election": "manual"})
    old = meta_of(world)
    wanted, other = old.ensemble[1:]
    world.cut_link(old.leader, wanted)
    assert world.write(old.shard_id, "missed by one")
    world.run(300)
    assert world.coordinator is not None
    world.coordinator.elections.begin(old.shard_id, "ordered", wanted=wanted)
    world.act(world.coordinator.tick(world.now_ms))
    assert world.run(
        3_000, lambda: meta_of(world).status is ShardStatus.ONLINE and meta_of(world).term > old.term
    )
    assert meta_of(world).leader == old.leader
    assert other in meta_of(world).live


def test_s4_18_a_leader_that_commits_by_itself_goes_on_alone() -> None:
    world = started({"commit": "local", "accept.split.brain": "true"})
    old = meta_of(world)
    for node in old.ensemble:
        if node != old.leader:
            world.crash_node(node)
    world.run(500)
    assert (meta_of(world).status, meta_of(world).term) == (ShardStatus.ONLINE, old.term)


# -- by everybody -------------------------------------------------------------------------------------------------


def test_s4_26_where_every_replica_writes_the_first_that_is_alive_is_where_clients_go() -> None:
    world = started({"writers": "multi"}, profile="tarantool")
    meta = meta_of(world)
    assert (meta.status, meta.term, meta.leader) == (ShardStatus.ONLINE, 1, meta.ensemble[0])
    world.crash_node(meta.ensemble[0])
    world.crash_node(meta.ensemble[1])
    world.run(100)
    now = meta_of(world)
    assert (now.status, now.term, now.leader, now.live) == (
        ShardStatus.ONLINE,
        1,
        meta.ensemble[2],
        meta.ensemble[2:],
    )
    world.crash_node(meta.ensemble[2])
    world.run(100)
    assert meta_of(world).status is ShardStatus.OFFLINE
    world.start_node(meta.ensemble[1])
    world.run(500)
    assert (meta_of(world).leader, meta_of(world).term) == (meta.ensemble[1], 1)
    refused = world.ask(ElectLeader(meta.shard_id))
    assert isinstance(refused, InvalidRequestError)
    assert "each of its replicas writes" in refused.message
    other_rule = world.ask(AlterTopic("t", config={"conflict": "first-writer-wins"}))
    assert isinstance(other_rule, InvalidRequestError)
    assert "conflict is decided when a topic is made" in other_rule.message


# -- changes of the commit rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "fence"), [("quorum", "live", "live"), ("live", "quorum", "majority")]
)
def test_c1_a_change_to_or_from_the_live_rule_is_a_new_term_under_the_same_leader(
    old: str, new: str, fence: str
) -> None:
    world = started({"commit": old}, shards=100)
    before = {shard.shard_id: shard for shard in world.state.topic_with_shards("t").shards}
    fences: set[str] = set()
    open_at_once = [0]

    def watch() -> bool:
        assert world.coordinator is not None
        open_at_once[0] = max(open_at_once[0], len(world.coordinator.elections))
        fences.update(meta.fence for meta in world.state.topic_with_shards("t").shards)
        return (
            all(meta.fence == fence for meta in world.state.topic_with_shards("t").shards)
            and world.all_online()
        )

    assert isinstance(world.ask(AlterTopic("t", config={"commit": new})), CommandDone)
    assert world.run(5_000, watch)
    for shard in world.state.topic_with_shards("t").shards:
        assert shard.leader == before[shard.shard_id].leader
        assert shard.term == before[shard.shard_id].term + 1
    assert fences == {Fence.MAJORITY, Fence.LIVE, Fence.BOTH}
    assert 0 < open_at_once[0] <= 64, "a few at a time"


def test_c1_other_changes_of_the_rule_need_no_new_term() -> None:
    world = started({})
    term = meta_of(world).term
    for rule in ("at_least(2)", "at_least(3)", "quorum"):
        assert isinstance(world.ask(AlterTopic("t", config={"commit": rule})), CommandDone)
        world.run(500)
    assert meta_of(world).term == term


def test_a_rule_is_held_against_the_voters_that_there_still_are() -> None:
    """Fewer replicas are asked for, and a shard is still on its way from more: what suits one need not suit the other."""
    world = started({})
    topic = world.state.topics["t"]
    fewer = msgspec.structs.replace(topic, replicas=1)
    record = world.state.shards[max(world.state.shards)]
    world.state.put_topic(fewer)
    world.state.apply([shard_record(record)], world.state.version + 1)
    world.crash_coordinator()
    world.start_coordinator()
    answer = world.ask(AlterTopic("t", config={"commit": "at_least(1)"}))
    assert isinstance(answer, InvalidRequestError)
    assert "a majority of 3 replicas may never get" in answer.message
