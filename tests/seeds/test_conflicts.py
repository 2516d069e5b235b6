"""Where the five documents disagree (C1-C14): each answer is an option, or there is one answer for all, shown here.

Options that take sockets are shown on nodes: C3 in `tests/node/test_dial.py`, C8 and C12 in `tests/node/test_in_flight.py`,
C7 in `tests/node/test_modes.py`, C11 in `tests/node/test_multi.py`.
"""

import asyncio

import pytest

from antiphon.client.aio import connect
from antiphon.coordination.profiles import PROFILES, check, replication_of
from antiphon.errors import InvalidRequestError, OffsetMismatchError
from antiphon.model.cluster import CommandDone
from antiphon.model.metadata import ABSENT_NODE, Kind, ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic, ElectLeader
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Ack,
    AddFollower,
    Append,
    NewTerm,
    NewTermReply,
    Reject,
    RequestVote,
    StaleTerm,
    Truncate,
    VoteReply,
)
from antiphon.replication.quorum import majority
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.replica_state import Role
from tests.coordination.world import World
from tests.node.in_process import cluster_of, in_virtual_time
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, cursor_of, entries, term_start
from tests.seeds.test_s4_core import marking


def started() -> World:
    """Three nodes and their coordinator; the replicas are models."""
    world = World(3, 1, model=True)
    world.start()
    return world


@pytest.mark.parametrize(
    ("rule", "committed", "settled"),
    [("quorum", 5, 5), ("at_least(3)", 3, 5), ("at_least(2)", 5, 5), ("at_least(1)", 7, 5), ("local", 7, 5)],
)
def test_c1_all_commit_rules_are_one_function_over_other_voting_sets(
    rule: str, committed: int, settled: int
) -> None:
    """The leader has 7, its followers 5 and 3, all durable; an election can lose nothing that a majority holds."""
    book = QuorumAckTracker(1, Members((1, 2, 3)), term_start=0)
    book.go_by_sets(book_members := Members((1, 2, 3)), CommitRule.parse(rule))
    for node, end in zip(book_members.voters, (7, 5, 3), strict=True):
        book.record(book.slot(node), end)
    assert (book.commit_offset(0), book.settled_offset(0)) == (committed, settled)


def test_c1_the_live_rule_counts_all_of_the_live_set_and_nothing_below_its_floor() -> None:
    book = QuorumAckTracker(1, Members((1, 2, 3)), term_start=0)
    for node, end in ((1, 7), (2, 5), (3, 3)):
        book.record(book.slot(node), end)
    book.go_by_live((1, 2, 3), enough=True)
    assert book.commit_offset(0) == 3
    book.go_by_live((1, 2), enough=True)
    assert book.commit_offset(3) == 5
    book.go_by_live((1,), enough=False)
    assert book.commit_offset(5) == 5


def test_c4_three_ways_to_choose_a_leader_end_in_the_same_fence() -> None:
    """A coordinator's NewTerm and a candidate's vote both make a replica promise the term durably, and fence it."""
    appointed = Cluster(nodes=3)
    appointed.lead(1, 1)
    appointed[2].auto_sync = False
    appointed.receive(COORDINATOR, 2, NewTerm(SHARD, 5))
    voting = Cluster(nodes=3, raft=True)
    voting[2].auto_sync = False
    voting.receive(3, 2, RequestVote(SHARD, 5, 3, voting.replica(3).log.terms.end))
    for cluster in (appointed, voting):
        replica = cluster.replica(2)
        assert (replica.term, replica.role) == (5, Role.FENCED)
        said = len(cluster.sent)
        assert cluster[2].term < 5
        assert not [m for source, _, m in cluster.sent if source == 2 and m.term == 5], (
            "not durable: not said"
        )
        cluster[2].sync()
        assert cluster[2].term == 5
        (promise,) = (message for source, _, message in cluster.sent[said:] if source == 2)
        assert isinstance(promise, NewTermReply | VoteReply)
        old = Append(SHARD, 4, 1, replica.log.terms.end, 0, 0)
        cluster.receive(1, 2, old)
        assert cluster.sent[-1] == (2, 1, StaleTerm(SHARD, 5)), "and nothing of an older term is obeyed"


def test_c4_a_leader_that_was_appointed_by_hand_is_replaced_by_hand_only() -> None:
    world = started()
    answer = world.ask(CreateTopic("t", replicas=3, config={"election": "manual"}))
    assert isinstance(answer, CommandDone), answer
    shard = max(world.state.shards)
    first = world.state.shards[shard].meta.leader
    world.crash_node(first)
    world.run(5_000)
    meta = world.state.shards[shard].meta
    assert (meta.status, meta.leader) == (ShardStatus.OFFLINE, ABSENT_NODE)
    second = next(node for node in meta.ensemble if node != first)
    assert isinstance(world.ask(ElectLeader(shard, second)), CommandDone)
    assert world.state.shards[shard].meta.leader == second


def test_c5_what_precedes_is_always_checked_and_truncate_only_saves_questions() -> None:
    """The same diverged follower is brought in line with the hint, and without it when that is lost."""
    for is_lost in (False, True):
        start = (term_start(1, 0), *entries(1, 1, "a", "b"))
        cluster = Cluster(logs={1: start, 2: start, 3: (*start, term_start(2, 3))}, terms={1: 1, 2: 1, 3: 2})
        cluster.lead(1, 3, 2)
        cluster.fence(3, 3)
        cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 3, node=3, head=cluster.replica(3).log.terms.end))
        if is_lost:
            cluster.drop(3)
        cluster.deliver()
        cluster.tick(10)
        hints = cluster.between(1, 3, Truncate)
        assert hints
        assert not cluster.between(3, 1, Reject), (
            "the hint names the point that the first question would be about"
        )
        assert cluster[3].log == cluster[1].log
        assert cluster.replica(3).high_watermark == cluster.replica(1).log_end


def test_c6_a_commit_is_told_by_the_next_message_or_is_a_record_as_well() -> None:
    assert replication_of("oxia", {}).commit_marker == "piggyback"
    assert replication_of("tarantool", {}).commit_marker == "record"
    marked, plain = marking(), Cluster()
    plain.lead(1, 1)
    for cluster in (marked, plain):
        before = cluster.replica(1).log_end
        cluster.propose(1, "a")
        cluster.deliver()
        cluster.tick(5)
        own = cluster.replica(1).log_end - before
        assert own == (2 if cluster is marked else 1)
        assert cluster.replica(2).high_watermark >= before + 1, "either way the followers hear of it"
        assert cluster.between(1, 2, Append)[-1].high_watermark >= before + 1


@pytest.mark.parametrize("members", range(1, 8))
def test_c9_the_leader_counts_in_its_majority(members: int) -> None:
    """With n members a leader commits with n // 2 acknowledgements of others (S0.11: of two followers, one)."""
    cluster = Cluster(nodes=members)
    cluster.lead(1, 1)
    others = list(range(2, members + 1))
    silent = others[members // 2 :]
    cluster.isolate(*silent)
    before = cluster.replica(1).high_watermark
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == before + 1
    assert majority(members) == members // 2 + 1
    if members > 2:
        cluster.isolate(*others[members // 2 - 1 :])
        cluster.propose(1, "b")
        cluster.deliver()
        assert cluster.replica(1).high_watermark == before + 1, "one less is no majority"


def test_c10_a_member_that_is_not_live_leads_only_where_that_is_allowed() -> None:
    assert not replication_of("fluvio", {}).unclean
    assert replication_of("fluvio", {"unclean.leader.election.enable": "true"}).unclean
    for allowed in ("false", "true"):
        world = started()
        config = {"unclean.leader.election.enable": allowed}
        answer = world.ask(CreateTopic("t", replicas=3, profile="fluvio", config=config))
        assert isinstance(answer, CommandDone), answer
        shard = max(world.state.shards)
        meta = world.state.shards[shard].meta
        for node in meta.ensemble:
            if node != meta.leader:
                world.crash_node(node)
        assert world.run(5_000, lambda: world.state.shards[shard].meta.live == (meta.leader,))  # noqa: B023
        for node in meta.ensemble:
            if node != meta.leader:
                world.cut_link(meta.leader, node)
                world.start_node(node)
        world.crash_node(meta.leader)
        world.run(8_000)
        after = world.state.shards[shard].meta
        assert (after.status is ShardStatus.ONLINE) == (allowed == "true")
        assert bool(world.unclean) == (allowed == "true"), "and it is told as an event"


def test_c11_several_writers_are_never_counted_as_a_quorum() -> None:
    for rule in ("quorum", "live", "at_least(2)"):
        with pytest.raises(InvalidRequestError, match="asynchronous"):
            check("oxia", {"writers": "multi", "commit": rule}, 3, Kind.TABLE)


def test_c13_a_term_begins_with_a_record_and_serves_when_that_is_committed() -> None:
    cluster = Cluster(nodes=3)
    cluster.appoint(1, 1)
    replica = cluster.replica(1)
    assert (replica.role, replica.ready, replica.log_end) == (Role.LEADER, False, 1)
    cluster.deliver()
    assert replica.ready
    assert replica.high_watermark == 1


def test_c13_but_on_an_empty_log_there_is_nothing_that_it_would_commit() -> None:
    cluster = Cluster(nodes=3, config=ReplicaConfig(resend_ticks=2, term_start_on_empty=False))
    cluster.appoint(1, 1)
    assert cluster.replica(1).ready
    assert cluster.replica(1).log_end == 0, "the first record of a topic has offset 0"


@in_virtual_time
async def test_c14_whoever_believes_to_lead_among_clients_the_logs_leader_judges() -> None:
    """Two clients, each of which takes itself for the only writer, expect the same offset: the log's leader takes one."""
    async with (
        cluster_of(2) as nodes,
        connect(nodes.members[0].native) as one,
        connect(nodes.members[1].native) as other,
    ):
        await one.create_topic("t", shards=1, replicas=2)
        writers = [one.topic("t"), other.topic("t")]
        landed: list[str] = []
        for end in range(10):
            found = await asyncio.gather(
                *(
                    writer.append(f"{who} {end}", shard=0, expected_offset=end)
                    for who, writer in enumerate(writers)
                ),
                return_exceptions=True,
            )
            refused = [who for who, result in enumerate(found) if isinstance(result, OffsetMismatchError)]
            assert len(refused) == 1
            landed.append(f"{1 - refused[0]} {end}")
        log = [record.value async for record in one.topic("t").read(shard=0)]
        assert log == [text.encode() for text in landed]


def test_c2_data_is_streamed_and_a_report_of_progress_is_the_acknowledgement() -> None:
    """The leader sends from its cursor as it appends, without being asked; followers only say how far they are."""
    cluster = Cluster(nodes=3)
    cluster.lead(1, 1)
    reported = len(cluster.between(2, 1, Ack))
    cursor = cursor_of(cluster, 1, 2)
    for data in ("a", "b", "c"):
        cluster.propose(1, data)
    streamed = [entry for message in cluster.between(1, 2, Append) for entry in message.entries]
    assert [entry.data for entry in streamed][-3:] == ["a", "b", "c"]
    assert cursor_of(cluster, 1, 2).last_pushed == cursor.last_pushed + 3
    assert cursor_of(cluster, 1, 2).ack_offset == cursor.ack_offset
    cluster.deliver()
    acks = cluster.between(2, 1, Ack)[reported:]
    assert {type(message) for source, to, message in cluster.sent if (source, to) == (2, 1)} == {Ack}
    ends = [ack.end.offset for ack in acks]
    assert ends == [cursor.ack_offset + 1, cursor.ack_offset + 2, cursor.ack_offset + 3]
    assert acks[-1].end == cluster.replica(2).log.terms.end == cluster.replica(1).log.terms.end
    assert cursor_of(cluster, 1, 2).ack_offset == ends[-1]


def test_c7_reads_that_name_no_isolation_see_what_is_committed_but_for_one_profile() -> None:
    defaults = {profile: replication_of(profile, {}).isolation for profile in PROFILES}
    assert defaults.pop("fluvio") == "uncommitted"
    assert set(defaults.values()) == {"committed"}
    for profile in PROFILES:
        for isolation in ("committed", "uncommitted"):
            assert replication_of(profile, {"isolation": isolation}).isolation == isolation
    with pytest.raises(InvalidRequestError, match="isolation"):
        replication_of("oxia", {"isolation": "linearizable"})


def test_c4_election_and_writers_are_for_good() -> None:
    world = started()
    assert isinstance(world.ask(CreateTopic("t", replicas=3)), CommandDone)
    for change in ({"election": "raft"}, {"writers": "multi"}):
        assert isinstance(world.ask(AlterTopic("t", dict(change))), InvalidRequestError)
    assert isinstance(world.ask(AlterTopic("t", {"commit": "at_least(3)"})), CommandDone)
