"""What the documents ask of changing members: the replication factor of a living shard, and who holds it (S0.1, S0.2)."""

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.model.cluster import CommandDone
from antiphon.model.requests import AlterTopic, CreateTopic, DrainNode, ElectLeader, MoveReplica, Rebalance
from antiphon.records.entry_id import EMPTY, EntryId, TermIndex
from antiphon.replication.actions import Send
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.messages import Append, Entry, NewTerm, NewTermReply, StaleTerm
from antiphon.replication.replica import Replica, ReplicaConfig
from antiphon.replication.replica_state import Role
from antiphon.replication.restored_state import RestoredState
from tests.coordination.members_world import MembersWorld


def started(nodes: int, *, shards: int = 1, replicas: int = 3, **options: str) -> MembersWorld:
    world = MembersWorld(nodes)
    world.start()
    answer = world.ask(CreateTopic("t", shards=shards, replicas=replicas, config=options))
    assert isinstance(answer, CommandDone), answer
    assert world.run(5_000, world.all_online)
    return world


def shards_of(world: MembersWorld) -> list[int]:
    return list(world.state.shards_of[world.state.topics["t"].topic_id])


def until_settled(world: MembersWorld) -> None:
    assert world.run(30_000, world.settled)


def test_s0_1_no_follower_is_legal_and_followers_come_later() -> None:
    world = started(4, replicas=1)
    [shard] = shards_of(world)
    assert len(world.meta(shard).ensemble) == 1
    world.write_some()
    world.ask(AlterTopic("t", replicas=4))
    until_settled(world)
    assert len(world.meta(shard).ensemble) == 4
    world.write_some()
    assert world.run(2_000, world.committed_is_everywhere)


@pytest.mark.parametrize("commit", ["quorum", "live", "at_least(2)"])
def test_s0_2_the_replication_factor_changes_while_it_runs(commit: str) -> None:
    world = started(5, shards=2, commit=commit)
    for replicas in (5, 2, 3):
        if commit == "at_least(2)" and replicas == 5:
            answer = world.ask(AlterTopic("t", replicas=replicas))
            assert isinstance(answer, InvalidRequestError), "2 of 5 would meet no majority"
            continue
        assert isinstance(world.ask(AlterTopic("t", replicas=replicas)), CommandDone)
        while not world.settled():
            world.write_some()
            world.run(20)
            assert world.now_ms < 120_000
        assert {len(world.meta(shard).ensemble) for shard in shards_of(world)} == {replicas}
    world.write_some()
    assert world.run(2_000, world.committed_is_everywhere)


def test_s0_5_who_was_taken_out_is_no_member_and_starts_from_nothing() -> None:
    """What it had promised is forgotten with its replica: an older leader must not find a follower in it again."""
    again = Replica(
        node_id=3,
        shard=1,
        ensemble=(),
        restored=RestoredState(terms=TermIndex()),
        entries=EntryFactory(lambda term, base: Entry(term, base, base + 1, b"")),
        config=ReplicaConfig(),
    )
    assert again.role is Role.NOT_MEMBER
    fed = Append(1, 4, leader=1, prev=EMPTY, high_watermark=0, round=1, entries=(Entry(4, 0, 1, b"x"),))
    assert again.receive(1, fed) == [], "nothing is acknowledged to whoever comes first"
    promised = [*again.receive(9, NewTerm(1, 5)), *again.persisted(1)]
    assert Send(9, NewTermReply(1, 5, EntryId(0, 0), 0)) in promised
    assert again.receive(1, fed) == [Send(1, StaleTerm(1, 5))], "and then the coordinator's term counts"


def test_s0_17_what_is_committed_survives_a_move_and_the_loss_of_all_old_voters() -> None:
    world = started(6)
    [shard] = shards_of(world)
    old = world.meta(shard).ensemble
    for _ in range(10):
        world.write_some()
        world.run(20)
    for gone, new in zip(old, (n for n in world.nodes if n not in old), strict=True):
        world.ask(MoveReplica(shard, gone, new))
        until_settled(world)
    kept = list(world.committed[shard])
    for node in old:
        world.crash_node(node)
    world.run(3_000)
    world.write_some()
    world.run(500)
    assert world.committed[shard][: len(kept)] == kept
    assert len(world.committed[shard]) > len(kept)


def test_s3_31_a_drain_moves_leadership_and_nothing_moves_it_back() -> None:
    world = started(4, shards=6)
    world.ask(DrainNode(1))
    until_settled(world)
    terms = {shard: world.meta(shard).term for shard in world.state.shards}
    assert all(world.meta(shard).leader != 1 for shard in world.state.shards)
    world.ask(DrainNode(1, cancel=True))
    world.run(10_000)
    assert {shard: world.meta(shard).term for shard in world.state.shards} == terms
    world.ask(Rebalance())
    until_settled(world)
    assert world.state.shards_on.get(1), "that takes a command"


def test_c4_where_leaders_are_appointed_by_hand_the_leader_is_not_taken_out() -> None:
    world = started(4, election="manual")
    [shard] = shards_of(world)
    meta = world.meta(shard)
    new = next(n for n in world.nodes if n not in meta.ensemble)
    answer = world.ask(MoveReplica(shard, meta.leader, new))
    assert isinstance(answer, InvalidRequestError)
    assert "automatically" in answer.message
    follower = next(n for n in meta.ensemble if n != meta.leader)
    world.ask(ElectLeader(shard, follower))
    assert world.meta(shard).leader == follower
    assert isinstance(world.ask(MoveReplica(shard, meta.leader, new)), CommandDone)
    until_settled(world)
    assert world.meta(shard).leader == follower
    assert new in world.meta(shard).ensemble


def test_s4_22_a_shard_has_at_most_31_replicas() -> None:
    world = started(4)
    answer = world.ask(AlterTopic("t", replicas=32))
    assert isinstance(answer, InvalidRequestError)
    assert "1 to 31" in answer.message
