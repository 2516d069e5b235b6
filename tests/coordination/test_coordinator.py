"""The coordinator with real replicas: elections, returns, commands, fail-overs."""

import msgspec
import pytest

from antiphon.coordination.cluster_records import node_record
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    InvalidRequestError,
    NotReadyError,
    TopicExistsError,
    UnavailableError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.model.cluster import (
    CommandDone,
    Heartbeat,
    LiveSet,
    ProducerIdBlock,
    Register,
    ReserveProducerIds,
)
from antiphon.model.metadata import Kind, NodeMeta, ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic, DeleteTopic, ElectLeader
from antiphon.replication.messages import AddFollower, BecomeLeader, NewTerm
from antiphon.replication.replica import Replica
from tests.coordination.world import World


def started(nodes: int = 3, seed: int = 1) -> World:
    world = World(nodes, seed)
    world.start()
    return world


def create(world: World, name: str, shards: int = 1, replicas: int = 3) -> None:
    answer = world.ask(CreateTopic(name, shards=shards, replicas=replicas))
    assert isinstance(answer, CommandDone), answer


def test_fresh_cluster_gets_its_default_table_when_all_are_there() -> None:
    world = World(3)
    world.start_coordinator()
    world.start_node(0)
    world.start_node(1)
    world.run(1_000)
    assert not world.state.topics
    assert isinstance(world.ask(CreateTopic("early")), NotReadyError)
    world.start_node(2)
    assert world.run(1_000, world.all_online)
    default = world.state.topic_with_shards("default")
    assert default.kind is Kind.TABLE
    assert [shard.index for shard in default.shards] == [0, 1, 2, 3]
    assert default.replicas == 3
    world.crash_coordinator()
    world.start_coordinator()
    world.run(1_000)
    assert list(world.state.topics) == ["default"]


def test_topics_can_be_made_when_an_initial_node_never_comes() -> None:
    world = World(3)
    world.start_coordinator()
    world.start_node(0)
    world.start_node(1)
    world.run(20_000)
    assert isinstance(world.ask(CreateTopic("t")), CommandDone)
    assert world.state.topics["t"].replicas == 2
    world.start_node(2)
    assert world.run(1_000, lambda: "default" in world.state.topics)


def test_leadership_of_300_shards_is_even() -> None:
    world = started()
    assert isinstance(world.ask(DeleteTopic("default")), CommandDone)
    create(world, "big", shards=300)
    assert world.leadership() == {0: 100, 1: 100, 2: 100}


def test_lost_node_re_elects_its_300_shards_in_one_proposal() -> None:
    world = started()
    create(world, "big", shards=300)
    led = world.leadership()[0]
    world.spoken.clear()
    assert not world.proposals
    before_ms = world.now_ms
    world.crash_node(0)
    assert len(world.proposals) == 1, "the terms of all shards and the node's death are one batch"
    assert len(world.proposals[0][1].records) >= led
    assert world.run(1_000, world.all_online)
    assert world.now_ms - before_ms < 300
    assert set(world.leadership()) == {1, 2}
    assert abs(world.leadership()[1] - world.leadership()[2]) <= 1
    fenced = [message.shard for to, message in world.spoken if isinstance(message, NewTerm) and to == 1]
    assert len(fenced) == len(set(fenced)) == led


def test_silent_node_is_found_dead_and_comes_back() -> None:
    world = started()
    create(world, "t", shards=6)
    world.crash_node(1, noticed=False)
    world.run(400)
    assert world.state.is_alive(1)
    assert world.run(1_000, world.all_online)
    assert not world.state.is_alive(1)
    world.start_node(1)
    assert world.run(1_000, lambda: world.state.is_alive(1) and world.all_online())
    assert world.leadership().get(1, 0) == 0, "no automatic fail-back (S3.31)"


def test_s0_38_late_member_is_fenced_and_added_to_the_running_leader() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    leader = world.state.shards[shard].meta.leader
    away = next(n for n in world.nodes if n != leader)
    world.crash_node(away)
    world.run(500)
    term = world.state.shards[shard].meta.term
    world.spoken.clear()
    world.start_node(away)
    assert world.run(2_000, world.all_online)
    assert world.state.shards[shard].meta.term == term, "no new term (S0.38)"
    mine = [(to, type(m)) for to, m in world.spoken if m.shard == shard]
    assert mine.index((away, NewTerm)) < mine.index((leader, AddFollower))


def test_restart_that_nobody_noticed_ends_its_leaderships() -> None:
    world = started()
    create(world, "t", shards=3)
    led = {s: record.meta.term for s, record in world.state.shards.items() if record.meta.leader == 0}
    world.crash_node(0, noticed=False)
    world.start_node(0)
    assert led
    assert world.run(
        2_000, lambda: all(world.state.shards[s].meta.term > led[s] for s in led) and world.all_online()
    )


def test_member_that_restarts_during_an_election_is_asked_again() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    meta = world.state.shards[shard].meta
    silent, restarted = (node for node in meta.ensemble if node != meta.leader)
    world.crash_node(silent, noticed=False)  # so that the election waits
    world.command(ElectLeader(shard))
    asked = (restarted, NewTerm(shard, meta.term + 1))
    assert world.run(100, lambda: asked in world.spoken)
    world.run(50)
    assert world.spoken.count(asked) == 1
    world.crash_node(restarted, noticed=False)
    world.start_node(restarted)
    world.run(100)
    assert world.spoken.count(asked) == 2


def test_majority_gone_is_offline_until_it_is_back() -> None:
    world = started()
    create(world, "t", shards=3)
    world.crash_node(0)
    world.crash_node(1)
    world.run(300)
    assert {record.meta.status for record in world.state.shards.values()} == {ShardStatus.OFFLINE}
    shard = max(world.state.shards)
    assert isinstance(world.ask(ElectLeader(shard)), UnavailableError)
    world.start_node(1)
    assert world.run(2_000, world.all_online)
    assert set(world.leadership()) == {1, 2}


def test_writes_survive_every_single_loss() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    for round_ in range(6):
        for i in range(5):
            assert world.write(shard, f"{round_}-{i}")
        world.run(100)
        leader = world.state.shards[shard].meta.leader
        world.crash_node(leader)
        assert world.run(2_000, world.all_online)
        world.start_node(leader)
        assert world.run(2_000, world.all_online)
    written = sum(1 for e in world.nodes[0].disk.logs[shard] if isinstance(e.data, str) and "-" in e.data)
    assert written == 30


def test_replaced_disk_does_not_vote_until_it_has_caught_up() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    leader = world.state.shards[shard].meta.leader
    second, third = (n for n in world.nodes if n != leader)
    world.crash_node(third)
    world.run(100)
    assert world.write(shard, "precious")  # on leader and second
    world.run(100)
    world.crash_node(second)
    world.crash_node(leader)
    world.run(100)
    world.start_node(second, new_disk=True)
    world.start_node(third)
    world.run(3_000)
    record = world.state.shards[shard]
    assert record.untrusted == (second,)
    assert record.meta.status is ShardStatus.OFFLINE, (
        "an empty disk and one that missed the write are no quorum"
    )
    world.start_node(leader)
    assert world.run(3_000, world.all_online)
    assert world.state.shards[shard].untrusted == ()
    assert [e.data for e in world.nodes[second].disk.logs[shard]].count("precious") == 1


def test_replaced_disk_is_trusted_again_only_when_its_leader_says_that_it_keeps_up() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    leader = world.state.shards[shard].meta.leader
    second, third = (n for n in world.nodes if n != leader)
    world.crash_node(second)
    world.run(100)
    honest = world._live_set

    def lagging(replica: Replica) -> LiveSet:
        return LiveSet(replica.shard, replica.term, (replica.node_id, third), (second,))

    world._live_set = lagging  # type: ignore[method-assign]
    world.start_node(second, new_disk=True)
    world.run(3_000)
    assert world.state.shards[shard].meta.status is ShardStatus.ONLINE
    assert world.state.shards[shard].untrusted == (second,)
    world._live_set = honest  # type: ignore[method-assign]
    assert world.run(3_000, lambda: world.state.shards[shard].untrusted == ())


def test_replaced_disk_is_refused_while_the_old_process_is_alive() -> None:
    world = started()
    assert world.coordinator is not None
    twin = NodeMeta(0, "127.0.0.1:9", incarnation="other", disk_id="other")
    actions = world.coordinator.register(77, Register("cluster-1", twin), world.now_ms)
    world.act(actions)
    assert isinstance(world.answers[77], UnavailableError)


@pytest.mark.parametrize(
    ("cluster_id", "node", "error"),
    [
        ("elsewhere", NodeMeta(5, "h:1", incarnation="i", disk_id="d"), ForeignDirectoryError),
        ("cluster-1", NodeMeta(-2, "h:1", incarnation="i", disk_id="d"), InvalidRequestError),
        ("cluster-1", NodeMeta(5, "", incarnation="i", disk_id="d"), InvalidRequestError),
        ("cluster-1", NodeMeta(5, "h:1", incarnation="", disk_id="d"), InvalidRequestError),
        ("cluster-1", NodeMeta(5, "h:1", incarnation="i"), InvalidRequestError),
    ],
)
def test_registrations_that_are_refused(cluster_id: str, node: NodeMeta, error: type[AntiphonError]) -> None:
    world = started(1)
    assert world.coordinator is not None
    world.act(world.coordinator.register(77, Register(cluster_id, node), world.now_ms))
    assert isinstance(world.answers[77], error)
    assert 5 not in world.state.nodes


def test_heartbeat_of_a_stranger_asks_for_registration() -> None:
    world = started(1)
    assert world.coordinator is not None
    assert world.coordinator.heartbeat(Heartbeat(9, "x", 0), world.now_ms) == (False, [])
    assert world.coordinator.heartbeat(Heartbeat(0, "another process", 0), world.now_ms) == (False, [])


@pytest.mark.parametrize(
    "request_",
    [
        CreateTopic("new", shards=3),
        CreateTopic("new", replicas=9),
        CreateTopic("t"),
        CreateTopic("new", config={"cleanup.policy": "compact", "commit": "local"}),
        AlterTopic("t", config={"retention.ms": "7"}),
        AlterTopic("t", config={"retention.ms": "soon"}),
        AlterTopic("t", shards=5),
        AlterTopic("t", shards=1),
        AlterTopic("t", replicas=2),
        AlterTopic("t", replicas=40),
        AlterTopic("t", replicas=2, shards=7),
        AlterTopic("none"),
    ],
    ids=str,
)
def test_a_rehearsal_is_answered_as_the_deed_and_writes_nothing(request_: CreateTopic | AlterTopic) -> None:
    world = started()
    assert isinstance(world.ask(CreateTopic("t", shards=2)), CommandDone)
    version = world.state.version
    rehearsed = world.ask(msgspec.structs.replace(request_, validate_only=True))
    assert world.state.version == version
    done = world.ask(request_)
    assert type(done) is type(rehearsed)
    if isinstance(done, AntiphonError):
        assert isinstance(rehearsed, AntiphonError)
        assert (done.code, done.message) == (rehearsed.code, rehearsed.message)
    else:
        assert world.state.version > version


def test_topic_commands() -> None:
    world = started()
    create(world, "t", shards=2)
    assert isinstance(world.ask(CreateTopic("t")), TopicExistsError)
    assert isinstance(world.ask(AlterTopic("t", config={"retention.ms": "60000"}, shards=4)), CommandDone)
    topic = world.state.topic_with_shards("t")
    assert (topic.config, len(topic.shards)) == ({"retention.ms": "60000"}, 4)
    assert world.all_online()
    assert isinstance(world.ask(AlterTopic("t", config={"retention.ms": None})), CommandDone)
    assert world.state.topics["t"].config == {}
    assert isinstance(world.ask(AlterTopic("t")), CommandDone)
    assert isinstance(world.ask(AlterTopic("t", shards=4)), InvalidRequestError)
    assert isinstance(world.ask(AlterTopic("default", shards=8)), InvalidRequestError)
    assert isinstance(world.ask(AlterTopic("none")), UnknownTopicError)
    old_ids = set(world.state.shards)
    assert isinstance(world.ask(DeleteTopic("t")), CommandDone)
    assert isinstance(world.ask(DeleteTopic("t")), UnknownTopicError)
    create(world, "t", shards=2)
    again = world.state.topic_with_shards("t")
    assert again.topic_id != topic.topic_id
    assert not old_ids & {shard.shard_id for shard in again.shards}, "shard ids are never used again"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (CreateTopic("a", replicas=4), "4 replicas need 4 nodes that are alive; 3 of 3 are"),
        (CreateTopic("a", replicas=-1), "1 to 31 replicas"),
        (CreateTopic("a", replicas=99), "1 to 31 replicas"),
        (CreateTopic("a/b"), "has '/'"),
        (CreateTopic("a", shards=0), "1 to 10,000 shards"),
        (CreateTopic("a", profile="rafd"), "did you mean 'raft'"),
        (
            CreateTopic("a", profile="raft", config={"commit": "live"}),
            "commit=live with election=raft is unsafe",
        ),
        (CreateTopic("a", config={"min.live": "few"}), "whole number"),
        (CreateTopic("a", config={"retention.msec": "1"}), "did you mean 'retention.ms'"),
        (CreateTopic("__own"), "must not begin with '__'"),
        (CreateTopic("own", internal=True), "must begin with '__'"),
        (ReserveProducerIds(0), "1 to 100,000"),
        (ElectLeader(1, node=7), "no replica of shard 1"),
    ],
)
def test_commands_that_are_refused(request_: CreateTopic, words: str) -> None:
    world = started()
    before = world.state.version
    answer = world.ask(request_)
    assert isinstance(answer, InvalidRequestError)
    assert words in answer.message
    assert world.state.version == before, "nothing was written"


def test_settings_are_kept_by_their_dotted_names() -> None:
    world = started()
    assert isinstance(world.ask(CreateTopic("t", config={"ack_every": "4", "min_live": "2"})), CommandDone)
    assert world.state.topics["t"].config == {"ack.every": "4", "min.live": "2"}
    changed = AlterTopic("t", config={"ack_every": None, "live_lag_ms": "500"})
    assert isinstance(world.ask(changed), CommandDone)
    assert world.state.topics["t"].config == {"live.lag.ms": "500", "min.live": "2"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"election": "raft"}, "election is decided when a topic is made: 't' has election=coordinator"),
        ({"writers": "multi", "accept.split.brain": "true"}, "cannot become"),
        ({"commit": "at_least(1)"}, "accept.split.brain=true"),
        ({"min.insync.replicas": "3"}, "a majority, 2 of 3 replicas"),
        ({"unclean_leader_election_enable": "true"}, "is for commit=live"),
    ],
)
def test_changes_of_a_living_topic_that_are_refused(config: dict[str, str | None], words: str) -> None:
    world = started()
    create(world, "t")
    before = world.state.version
    answer = world.ask(AlterTopic("t", config=config))
    assert isinstance(answer, InvalidRequestError)
    assert words in answer.message
    assert world.state.version == before
    unchanged = AlterTopic("t", config={"election": "coordinator"})
    assert isinstance(world.ask(unchanged), CommandDone), "what is the case already is no change"


def test_nodes_that_are_being_drained_get_no_new_replicas() -> None:
    world = started(4)
    coordinator = world.coordinator
    assert coordinator is not None
    going = msgspec.structs.replace(world.state.nodes[1], draining=True)
    world.state.apply([node_record(going)], world.state.version + 1)
    world.crash_coordinator()
    world.start_coordinator()
    create(world, "t", shards=20)
    assert all(1 not in shard.ensemble for shard in world.state.topic_with_shards("t").shards)
    answer = world.ask(CreateTopic("u", replicas=4))
    assert isinstance(answer, InvalidRequestError)
    assert "4 replicas need 4 nodes that are alive; 3 of 3 are" in answer.message


def test_internal_tables_cannot_be_deleted() -> None:
    world = started()
    assert isinstance(world.ask(CreateTopic("__groups", kind=Kind.TABLE, internal=True)), CommandDone)
    assert isinstance(world.ask(DeleteTopic("__groups")), InvalidRequestError)


def test_default_replicas_count_nodes_that_are_away_for_a_moment() -> None:
    world = started()
    world.crash_node(2)
    world.run(500)
    assert isinstance(world.ask(CreateTopic("t", replicas=3)), InvalidRequestError)
    assert isinstance(world.ask(CreateTopic("t")), CommandDone)
    assert sorted(world.state.topic_with_shards("t").shards[0].ensemble) == [0, 1, 2]
    world.start_node(2)
    assert world.run(2_000, world.all_online)


def test_internal_topics_are_made_while_most_nodes_are_alive_whatever_their_number_of_replicas() -> None:
    world = started(5)
    for node in (3, 4):
        world.crash_node(node)
    world.run(500)
    assert isinstance(world.ask(CreateTopic("__staged", replicas=5, internal=True)), CommandDone)
    (shard,) = world.state.topic_with_shards("__staged").shards
    assert (sorted(shard.ensemble), shard.leader in {0, 1, 2}) == ([0, 1, 2, 3, 4], True)
    answer = world.ask(CreateTopic("__jobs", kind=Kind.TABLE, replicas=7, internal=True))
    assert isinstance(answer, InvalidRequestError)
    assert answer.details["staying"] == 5


def test_elect_leader() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    meta = world.state.shards[shard].meta
    for node in (*meta.ensemble, meta.ensemble[0]):
        assert isinstance(world.ask(ElectLeader(shard, node)), CommandDone)
        assert world.state.shards[shard].meta.leader == node
    term = world.state.shards[shard].meta.term
    assert isinstance(world.ask(ElectLeader(shard)), CommandDone)
    assert world.state.shards[shard].meta.term == term + 1
    assert isinstance(world.ask(ElectLeader(999)), UnknownShardError)
    world.crash_node(2)
    world.run(500)
    assert isinstance(world.ask(ElectLeader(shard, 2)), UnavailableError)


def test_producer_ids_are_never_given_twice() -> None:
    world = started()
    blocks = [world.ask(ReserveProducerIds(100))]
    tokens = [world.command(ReserveProducerIds(50)) for _ in range(20)]
    world.run(100)
    blocks += [world.answers[token] for token in tokens]
    world.command(ReserveProducerIds(1000))
    world.crash_coordinator()
    world.start_coordinator()
    world.run(300)
    blocks.append(world.ask(ReserveProducerIds(10)))
    seen: set[int] = set()
    for block in blocks:
        assert isinstance(block, ProducerIdBlock)
        ids = set(range(block.first, block.first + block.count))
        assert not ids & seen
        seen |= ids
    assert min(seen) >= 1


def test_new_coordinator_leaves_what_works_alone() -> None:
    world = started()
    create(world, "t", shards=9)
    terms = {shard: record.meta.term for shard, record in world.state.shards.items()}
    world.crash_coordinator()
    world.run(400)
    world.spoken.clear()
    world.start_coordinator()
    world.run(5_000)
    assert {shard: record.meta.term for shard, record in world.state.shards.items()} == terms
    assert not world.spoken


def test_new_coordinator_elects_where_the_leader_died_with_the_old_one() -> None:
    world = started()
    create(world, "t", shards=9)
    world.crash_coordinator()
    world.crash_node(0)
    world.run(300)
    before_ms = world.now_ms
    world.start_coordinator(lost=(0,))
    assert world.run(2_000, world.all_online)
    assert world.now_ms - before_ms < 500


def test_new_coordinator_gives_nodes_time_to_find_it() -> None:
    world = started()
    world.crash_coordinator()
    world.run(5_000)
    world.start_coordinator()
    world.run(1_000)
    assert all(node.alive for node in world.state.nodes.values())


def test_coordinator_that_slept_does_not_blame_the_others() -> None:
    world = started()
    coordinator = world.coordinator
    assert coordinator is not None
    version = world.state.version
    world.act(coordinator.tick(world.now_ms + 60_000))
    world.run(100)
    assert world.state.version == version
    assert all(node.alive for node in world.state.nodes.values())


def test_candidate_that_does_not_answer_is_passed_over() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    coordinator = world.coordinator
    assert coordinator is not None
    deaf: list[int] = []
    original = world._to_replica

    def to_replica(sender: int, to: int, message: object) -> None:
        if isinstance(message, BecomeLeader) and (not deaf or to in deaf):
            deaf.append(to)
            return
        original(sender, to, message)

    world._to_replica = to_replica  # type: ignore[method-assign]
    assert isinstance(world.ask(ElectLeader(shard), within_ms=10_000), CommandDone)
    assert world.state.shards[shard].meta.leader not in deaf


def test_s3_statuses_are_committed_in_order() -> None:
    world = started()
    create(world, "t")
    shard = max(world.state.shards)
    seen = [world.state.shards[shard].meta.status]
    token = world.command(ElectLeader(shard))

    def watch() -> bool:
        status = world.state.shards[shard].meta.status
        if status is not seen[-1]:
            seen.append(status)
        return token in world.answers

    world.run(2_000, watch)
    watch()
    assert seen == [
        ShardStatus.ONLINE,
        ShardStatus.ELECTION,
        ShardStatus.CANDIDATE_FOUND,
        ShardStatus.ONLINE,
    ]


def test_idle_ticks_do_nothing() -> None:
    world = started()
    create(world, "t", shards=50)
    world.run(3_000)
    world.spoken.clear()
    version = world.state.version
    world.run(20_000)
    assert world.state.version == version
    assert not world.spoken


def test_deleting_a_topic_that_is_being_created_answers_both() -> None:
    world = started()
    creating = world.command(CreateTopic("t", shards=5))
    deleting = world.command(DeleteTopic("t"))
    world.run(1_000)
    assert isinstance(world.answers[creating], UnknownTopicError)
    assert isinstance(world.answers[deleting], CommandDone)
    assert "t" not in world.state.topics
    assert world.all_online()
