"""A shard of which most replicas are lost goes on from one that is left, by an operator's command."""

from typing import Any

import pytest

from antiphon.coordination.cluster_records import RECOVERED_FORMAT, headers_of, shard_record
from antiphon.coordination.recovery import RECOVERY_TERMS
from antiphon.coordination.shard_recovery import is_kept, is_of_the_past
from antiphon.errors import InvalidRequestError, UnavailableError, UnknownShardError
from antiphon.model.cluster import CommandDone, LiveSet
from antiphon.model.metadata import ShardMeta, ShardRecovery, ShardStatus
from antiphon.model.placement import RecoverShard
from antiphon.model.requests import AlterTopic, CreateTopic, ElectLeader, MoveReplica
from antiphon.replication.messages import BecomeLeader, GoOnAlone, NewTerm
from tests.coordination.members_world import MembersWorld


def started(nodes: int = 6, seed: int = 1, **topic: Any) -> tuple[MembersWorld, int]:
    """A shard with entries, of three replicas, and its id."""
    world = MembersWorld(nodes, seed)
    world.start()
    world.ask(CreateTopic("t", shards=1, replicas=3, **topic))
    assert world.run(5_000, world.all_online)
    [shard] = world.state.shards_of[world.state.topics["t"].topic_id]
    for _ in range(5):
        world.write(shard, "before")
        world.run(50)
    return world, shard


def lose(world: MembersWorld, shard: int, but: int | None = None) -> tuple[int, list[int]]:
    """All members but one go down; returns that one and the others."""
    meta = world.meta(shard)
    left = meta.ensemble[-1] if but is None else but
    gone = [node for node in meta.ensemble if node != left]
    for node in gone:
        world.crash_node(node)
    world.run(500)
    return left, gone


def left_behind(nodes: int = 6) -> tuple[MembersWorld, int, int, list[int]]:
    """A shard of which one replica is left, that was away while the others wrote; and these, which are down."""
    world, shard = started(nodes)
    leader = world.meta(shard).leader
    left = next(node for node in world.meta(shard).ensemble if node != leader)
    world.crash_node(left)
    world.run(500)
    for _ in range(7):
        world.write(shard, "only there")
        world.run(50)
    _, gone = lose(world, shard, left)
    world.start_node(left)
    world.run(1_000)
    return world, shard, left, gone


def request(world: MembersWorld, shard: int, node: int, number: int = 1) -> RecoverShard:
    """As the command makes it: with what it has seen."""
    disk = world.nodes[node].disk
    log = disk.logs.get(shard, [])
    return RecoverShard(shard, node, disk.terms.get(shard, 0), log[-1].next_offset if log else 0, number)


def come_to_rest(world: MembersWorld, shard: int) -> None:
    """The shard has its replicas again, and they have one log."""
    assert world.run(60_000, lambda: _is_whole(world, shard)), world.meta(shard)
    world.write(shard, "after")
    world.run(1_000)
    logs = [world.nodes[node].disk.logs[shard] for node in world.meta(shard).ensemble]
    assert all(log == logs[0] for log in logs)


def _is_whole(world: MembersWorld, shard: int) -> bool:
    meta = world.meta(shard)
    rests = not (meta.goal or meta.outgoing or meta.learners)
    return rests and meta.status is ShardStatus.ONLINE and len(meta.live) == 3


def test_a_shard_goes_on_from_the_replica_that_is_left() -> None:
    world, shard = started()
    before = world.meta(shard)
    left, gone = lose(world, shard)
    assert world.meta(shard).status is ShardStatus.OFFLINE
    log = list(world.nodes[left].disk.logs[shard])
    assert isinstance(world.ask(request(world, shard, left)), CommandDone)
    meta = world.meta(shard)
    assert (meta.leader, meta.status) == (left, ShardStatus.ONLINE)
    assert meta.term > RECOVERY_TERMS > before.term
    assert world.nodes[left].disk.logs[shard][: len(log)] == log
    come_to_rest(world, shard)
    meta = world.meta(shard)
    assert left in meta.ensemble
    assert not set(meta.ensemble) & set(gone)
    known = meta.recovery
    assert known == ShardRecovery(RECOVERY_TERMS, left, before.ensemble, log[-1].next_offset, done=True)
    [told] = world.recovered
    assert (told.shard_id, told.node, told.at) == (shard, left, log[-1].next_offset)


def test_what_only_the_lost_replicas_had_is_lost_and_never_comes_back() -> None:
    """The replica that is left was away while the others wrote. These come back with their disks when all is over."""
    world, shard, left, gone = left_behind()
    assert world.meta(shard).status is ShardStatus.OFFLINE
    world.ask(request(world, shard, left))
    come_to_rest(world, shard)
    for node in gone:
        world.start_node(node)
    world.run(2_000)
    for node in gone:  # whoever comes back holds nothing of the old log, and is no member
        assert node not in world.meta(shard).everybody
        assert shard not in world.nodes[node].disk.logs
    for node in gone:
        meta = world.meta(shard)
        other = next(one for one in meta.ensemble if one != meta.leader and one not in gone)
        world.ask(MoveReplica(shard, other, node))
        come_to_rest(world, shard)
    assert set(gone) <= set(world.meta(shard).ensemble)
    data = [entry.data for entry in world.nodes[gone[0]].disk.logs[shard]]
    assert "only there" not in data
    assert data.count("before") == 5


def test_an_old_replica_that_is_wanted_again_at_once_begins_empty() -> None:
    """Its node comes back when the shard is to grow back to it: it must not be taken for one that has the new log."""
    world, shard, left, gone = left_behind(3)
    world.ask(request(world, shard, left))
    assert world.meta(shard).ensemble == (left,)
    for node in gone:
        world.start_node(node)
    world.run(5, lambda: all(world.state.is_alive(node) for node in gone))
    assert isinstance(world.ask(AlterTopic("t", replicas=3)), CommandDone)
    come_to_rest(world, shard)
    assert set(world.meta(shard).ensemble) == {left, *gone}
    assert "only there" not in [entry.data for entry in world.nodes[gone[0]].disk.logs[shard]]


def test_a_majority_that_is_alive_is_no_case_for_it() -> None:
    world, shard = started()
    meta = world.meta(shard)
    follower = next(node for node in meta.ensemble if node != meta.leader)
    answer = world.ask(request(world, shard, follower))
    assert isinstance(answer, InvalidRequestError)
    assert f"led by node {meta.leader}" in answer.message
    world.crash_node(meta.leader)  # an election is under way
    answer = world.ask(request(world, shard, follower))
    assert isinstance(answer, InvalidRequestError)
    assert "enough to elect a leader who has all" in answer.message
    assert "antiphon shard elect" in answer.message
    world.run(5_000)
    assert world.meta(shard).recovery is None
    assert set(world.meta(shard).ensemble) == set(meta.ensemble)
    assert world.meta(shard).term < RECOVERY_TERMS


def test_empty_disks_in_the_place_of_lost_ones_are_no_majority() -> None:
    world, shard = started()
    left, gone = lose(world, shard)
    for node in gone:
        world.start_node(node, new_disk=True)
    world.run(3_000)
    assert world.meta(shard).status is ShardStatus.OFFLINE
    answer = world.ask(request(world, shard, gone[0]))
    assert isinstance(answer, InvalidRequestError)
    assert "empty disk" in answer.message
    assert isinstance(world.ask(request(world, shard, left)), CommandDone)
    come_to_rest(world, shard)


def test_damaged_logs_of_which_none_may_lead_are_no_majority() -> None:
    world, shard = started()
    left, gone = lose(world, shard)
    for node in gone:
        world.damage(node)
        world.start_node(node)
    world.run(3_000)
    assert world.meta(shard).status is ShardStatus.OFFLINE
    assert isinstance(world.ask(request(world, shard, left)), CommandDone)
    come_to_rest(world, shard)


def test_where_leaders_are_appointed_another_one_is_appointed_first() -> None:
    """The appointed leader's log is damaged, and the others have everything: nothing is to be recovered."""
    world, shard = started(config={"election": "manual"})
    leader = world.meta(shard).leader
    world.crash_node(leader)
    world.damage(leader)
    world.start_node(leader)
    world.run(3_000)
    assert world.meta(shard).status is ShardStatus.OFFLINE
    other = next(node for node in world.meta(shard).ensemble if node != leader)
    answer = world.ask(request(world, shard, other))
    assert isinstance(answer, InvalidRequestError)
    assert "antiphon shard elect" in answer.message
    assert isinstance(world.ask(ElectLeader(shard, other)), CommandDone)
    come_to_rest(world, shard)


def test_a_disk_lost_in_the_joint_step_of_a_shrink() -> None:
    """Two replicas are to be left, and one of these is lost when both sets have to agree."""
    world, shard = started(3)
    meta = world.meta(shard)
    one, other = (node for node in meta.ensemble if node != meta.leader)
    world.cut_link(meta.leader, one)  # so that the joint step lasts
    world.ask(AlterTopic("t", replicas=2))
    world.run(10_000, lambda: bool(world.meta(shard).outgoing))
    meta = world.meta(shard)
    if not meta.outgoing:
        pytest.fail("the joint step was not met")
    kept = [node for node in meta.ensemble if node != meta.leader]
    lost = kept[0]
    world.crash_node(lost)
    world.heal_links()
    world.run(500)
    assert world.meta(shard).status is ShardStatus.OFFLINE
    left = next(node for node in (one, other, meta.leader) if node != lost)
    assert isinstance(world.ask(request(world, shard, left)), CommandDone)
    assert world.meta(shard).outgoing == ()


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_the_coordinator_dies_at_any_step(commits: int) -> None:
    world, shard = started(seed=commits + 1)
    left, _ = lose(world, shard)
    asked = request(world, shard, left)
    world.command(asked)
    for _ in range(commits):
        version = world.state.version
        world.run(2_000, lambda before=version: world.state.version > before)  # type: ignore[misc]
    world.crash_coordinator()
    world.run(300)
    world.start_coordinator(tuple(n for n in world.nodes if not world.nodes[n].running))
    world.run(300)
    assert isinstance(world.ask(asked, within_ms=10_000), CommandDone), "the same request again"
    come_to_rest(world, shard)
    known = world.meta(shard).recovery
    assert known is not None
    assert (known.number, known.node, known.term, known.done) == (1, left, RECOVERY_TERMS, True)
    assert isinstance(world.ask(asked), CommandDone), "and once more, when all is done"
    assert world.meta(shard).recovery == known


def test_another_one_may_be_named_while_nobody_leads() -> None:
    """The replica from which the shard was to go on is lost before it leads. The other one that was left is still there."""
    world = MembersWorld(8)
    world.start()
    world.ask(CreateTopic("t", shards=1, replicas=5))
    assert world.run(5_000, world.all_online)
    [shard] = world.state.shards_of[world.state.topics["t"].topic_id]
    world.write(shard, "before")
    world.run(200)
    members = world.meta(shard).ensemble
    first, second, *gone = (*(n for n in members if n != world.meta(shard).leader), world.meta(shard).leader)
    for node in gone:
        world.crash_node(node)
    world.run(500)
    world.command(request(world, shard, first))
    version = world.state.version
    world.run(1_000, lambda: world.state.version > version)
    world.crash_node(first)
    world.run(1_000)
    meta = world.meta(shard)
    assert meta.status is ShardStatus.OFFLINE
    assert is_kept(meta, second)
    assert world.nodes[second].disk.logs[shard], "kept, though it is no member"
    assert shard not in world.nodes[second].replicas
    answer = world.ask(request(world, shard, second, 1))
    assert isinstance(answer, InvalidRequestError)
    assert "recovered meanwhile" in answer.message
    assert isinstance(world.ask(request(world, shard, second, 2)), CommandDone)
    meta = world.meta(shard)
    known = meta.recovery
    assert known is not None
    assert (known.number, known.node, meta.leader) == (2, second, second)
    assert known.term == 2 * RECOVERY_TERMS
    assert set(known.members) == set(members)
    world.start_node(first)
    world.run(5_000)
    assert shard not in world.nodes[first].disk.logs or first in world.meta(shard).everybody


def test_live_sets_begin_anew() -> None:
    """Of the live set, which had shrunk to two, both are lost; the third one has less."""
    world, shard = started(profile="fluvio")
    assert world.run(5_000, lambda: world.meta(shard).fence == "live")
    leader = world.meta(shard).leader
    left = next(node for node in world.meta(shard).ensemble if node != leader)
    world.crash_node(left)
    world.run(1_000)
    for _ in range(5):
        world.write(shard, "only there")
        world.run(50)
    before = world.meta(shard)
    assert left not in before.live
    for node in before.live:
        world.crash_node(node)
    world.start_node(left)
    world.run(1_000)
    assert world.meta(shard).status is ShardStatus.OFFLINE
    assert isinstance(world.ask(request(world, shard, left)), CommandDone)
    assert world.meta(shard).live[0] == left
    assert world.meta(shard).live_version > before.live_version
    assert world.meta(shard).fence == "live"
    come_to_rest(world, shard)


def test_more_live_replicas_than_one_are_not_demanded_of_one() -> None:
    world, shard = started(profile="fluvio", config={"min.live": "2"})
    assert world.run(5_000, lambda: world.meta(shard).fence == "live")
    leader = world.meta(shard).leader
    left = next(node for node in world.meta(shard).ensemble if node != leader)
    world.crash_node(left)
    world.run(1_000)
    for node in world.meta(shard).live:
        world.crash_node(node)
    world.start_node(left)
    world.run(1_000)
    answer = world.ask(request(world, shard, left))
    assert isinstance(answer, InvalidRequestError)
    assert "min.live=2 lets nobody write" in answer.message
    assert isinstance(world.ask(AlterTopic("t", config={"min.live": "1"})), CommandDone)
    assert isinstance(world.ask(request(world, shard, left)), CommandDone)
    come_to_rest(world, shard)


def test_a_live_set_of_one_that_is_alive_is_no_case_for_it() -> None:
    world, shard = started(profile="fluvio")
    assert world.run(5_000, lambda: world.meta(shard).fence == "live")
    left, _ = lose(world, shard, world.meta(shard).leader)
    assert world.run(5_000, lambda: world.meta(shard).status is ShardStatus.ONLINE)
    answer = world.ask(request(world, shard, left))
    assert isinstance(answer, InvalidRequestError)
    assert f"led by node {left}" in answer.message


def test_what_is_refused() -> None:
    world, shard = started()
    multi = "m"
    world.ask(CreateTopic(multi, shards=1, replicas=3, config={"writers": "multi"}))
    [every] = world.state.shards_of[world.state.topics[multi].topic_id]
    answer = world.ask(RecoverShard(every, 0, 0, 0))
    assert isinstance(answer, InvalidRequestError)
    assert "writers=multi" in answer.message
    assert isinstance(world.ask(RecoverShard(99, 0, 0, 0)), UnknownShardError)
    left, gone = lose(world, shard)
    stranger = next(n for n in world.nodes if n not in world.meta(shard).ensemble)
    for node, error, said in (
        (stranger, InvalidRequestError, "has no replica"),
        (gone[0], UnavailableError, "is not alive"),
    ):
        answer = world.ask(RecoverShard(shard, node, 0, 0))
        assert isinstance(answer, error)
        assert said in answer.message
    old = next(node for node in world.nodes.values() if node.running and node.node_id != left)
    old.reads = RECOVERED_FORMAT - 1
    world.crash_node(old.node_id)
    world.start_node(old.node_id)
    world.run(1_000)
    answer = world.ask(request(world, shard, left))
    assert isinstance(answer, InvalidRequestError)
    assert f"nodes {old.node_id} are of a version" in answer.message
    assert world.meta(shard).recovery is None


def test_nobody_is_told_before_it_is_committed() -> None:
    world, shard = started()
    left, _ = lose(world, shard)
    world.spoken.clear()
    world.command(request(world, shard, left))
    assert not [one for _, one in world.spoken if isinstance(one, NewTerm | BecomeLeader)]
    assert not world.recovered
    world.run(1_000)
    assert {to for to, one in world.spoken if isinstance(one, NewTerm) and one.shard == shard} >= {left}
    assert all(
        one.term > RECOVERY_TERMS for _, one in world.spoken if isinstance(one, NewTerm | BecomeLeader)
    )


def test_where_replicas_vote_the_last_one_is_told_until_it_leads() -> None:
    world, shard = started(profile="raft")
    left, gone = lose(world, shard)
    assert world.meta(shard).status is ShardStatus.OFFLINE
    token = world.command(request(world, shard, left))
    world.run(2_000)
    told = [one for to, one in world.spoken if isinstance(one, GoOnAlone) and to == left]
    assert len(told) >= 3, "it is repeated"
    assert set(told) == {GoOnAlone(shard, RECOVERY_TERMS)}
    assert token not in world.answers
    coordinator = world.coordinator
    assert coordinator is not None
    world.act(coordinator.live_sets(gone[0], (LiveSet(shard, 9, tuple(gone)),), world.now_ms))
    assert world.meta(shard).status is not ShardStatus.ONLINE, "a leader of the old history is not heard"
    world.voters[shard].term = RECOVERY_TERMS + 1
    world.voters[shard].leader = left
    assert world.run(2_000, lambda: token in world.answers)
    assert isinstance(world.answers[token], CommandDone)
    meta = world.meta(shard)
    assert (meta.leader, meta.recovery is not None and meta.recovery.done) == (left, True)
    count = len([one for _, one in world.spoken if isinstance(one, GoOnAlone)])
    world.run(10_000)
    assert len([one for _, one in world.spoken if isinstance(one, GoOnAlone)]) == count


def test_where_replicas_vote_the_next_coordinator_tells_it() -> None:
    """The first one dies when the record is committed; nobody asks again."""
    world, shard = started(profile="raft")
    left, _ = lose(world, shard)
    world.command(request(world, shard, left))
    version = world.state.version
    world.run(1_000, lambda: world.state.version > version)
    world.crash_coordinator()
    world.spoken.clear()
    world.start_coordinator(tuple(n for n in world.nodes if not world.nodes[n].running))
    world.run(100)
    assert (left, GoOnAlone(shard, RECOVERY_TERMS)) in world.spoken


def test_where_replicas_vote_a_leader_that_has_given_up_is_the_one_to_go_on_from() -> None:
    """It was the last to report; what it says of others, which are dead by now, comes late."""
    world, shard = started(profile="raft")
    assert world.run(5_000, lambda: world.meta(shard).status is ShardStatus.ONLINE)
    meta = world.meta(shard)
    leader = meta.leader
    lose(world, shard, leader)
    coordinator = world.coordinator
    assert coordinator is not None
    world.voters[shard].leader = None
    world.act(coordinator.live_sets(leader, (LiveSet(shard, meta.term, meta.ensemble),), world.now_ms))
    world.run(20)
    assert world.meta(shard).leader == leader, "the record says so still"
    other = next(node for node in meta.ensemble if node != leader)
    world.start_node(other)
    world.run(20)
    answer = world.ask(request(world, shard, leader))
    assert isinstance(answer, InvalidRequestError)
    assert "is led by" in answer.message
    world.crash_node(other)
    world.act(coordinator.live_sets(leader, (LiveSet(shard, meta.term, meta.ensemble),), world.now_ms))
    world.run(20)
    answer = world.ask(request(world, shard, other))
    assert isinstance(answer, InvalidRequestError)
    assert f"node {leader} led shard {shard} last" in answer.message
    world.command(request(world, shard, leader))
    world.run(100)
    known = world.meta(shard).recovery
    assert known is not None
    assert known.node == leader


def test_where_replicas_vote_empty_disks_are_known() -> None:
    world, shard = started(profile="raft")
    assert world.run(5_000, lambda: world.meta(shard).status is ShardStatus.ONLINE)
    _, gone = lose(world, shard)
    for node in gone:
        world.start_node(node, new_disk=True)
    world.voters[shard].leader = None
    world.run(100)
    record = world.state.shards[shard]
    assert set(record.untrusted) == set(gone)


def test_the_record_has_a_format_of_its_own() -> None:
    world, shard = started()
    record = world.state.shards[shard]
    assert headers_of(*shard_record(record)) == ()
    left, _ = lose(world, shard)
    world.ask(request(world, shard, left))
    [(_, number)] = headers_of(*shard_record(world.state.shards[shard]))
    assert int(number) == RECOVERED_FORMAT == 8


def test_who_is_of_the_past() -> None:
    meta = ShardMeta(1, 0, (1,), recovery=ShardRecovery(1_000_000, 1, (1, 2, 3), 10))
    assert is_of_the_past(meta, 2, 7)
    assert not is_of_the_past(meta, 1, 7), "from this one it goes on"
    assert not is_of_the_past(meta, 2, 1_000_000), "it promised in the new history"
    assert not is_of_the_past(ShardMeta(1, 0, (1,)), 2, 7)
    assert is_kept(meta, 2)
    assert not is_kept(meta, 4)
