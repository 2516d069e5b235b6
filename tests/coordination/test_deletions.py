"""Deletions of records by offset, in the metadata: who may ask, and who is told of them."""

import msgspec
import pytest

from antiphon.coordination.deletions import of_new_term
from antiphon.coordination.election import Election
from antiphon.errors import InvalidRequestError, StaleTermError, UnknownShardError
from antiphon.model.cluster import CommandDone, DeleteBefore
from antiphon.model.metadata import ShardMeta, ShardRecovery
from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import BecomeLeader, NewTermReply
from tests.coordination.test_coordinator import create, started
from tests.coordination.world import World


def shard(world: World) -> ShardMeta:
    (found,) = world.state.topic_with_shards("t").shards
    return found


def test_a_deletion_is_of_the_term_that_it_was_asked_for_in_and_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = started()
    create(world, "t")
    meta = shard(world)
    assert isinstance(world.ask(DeleteBefore(meta.shard_id, meta.term, 7)), CommandDone)
    assert shard(world).deleted_before == 7
    assert isinstance(world.ask(DeleteBefore(meta.shard_id, meta.term, 5)), CommandDone)
    assert shard(world).deleted_before == 7
    told = []
    real = World._to_replica

    def listen(self: World, sender: int, to: int, message: object) -> None:
        if isinstance(message, BecomeLeader):
            told.append(message.deleted_before)
        real(self, sender, to, message)

    monkeypatch.setattr(World, "_to_replica", listen)
    world.crash_node(meta.leader)
    assert world.run(5_000, lambda: shard(world).term > meta.term and world.all_online())
    assert 7 in told
    assert isinstance(world.ask(DeleteBefore(meta.shard_id, meta.term, 9)), StaleTermError)
    world.crash_coordinator()
    world.start_coordinator()
    assert world.run(5_000, world.all_online)
    assert shard(world).deleted_before == 7


def test_what_is_refused() -> None:
    world = World(3)
    world.nodes[2].reads = 5
    world.start()
    create(world, "t")
    meta = shard(world)
    assert isinstance(world.ask(DeleteBefore(99, meta.term, 7)), UnknownShardError)
    assert isinstance(world.ask(DeleteBefore(meta.shard_id, meta.term, -1)), InvalidRequestError)
    refused = world.ask(DeleteBefore(meta.shard_id, meta.term, 7))
    assert isinstance(refused, InvalidRequestError)
    assert "nodes 2 are of a version" in refused.message
    assert shard(world).deleted_before == 0


def test_only_an_unclean_leader_takes_back_what_it_never_had() -> None:
    meta = ShardMeta(5, 0, (0, 1, 2), deleted_before=9)
    election = Election(5, 3, candidate=1, replies={1: NewTermReply(5, 3, EntryId(2, 6), 0)})
    assert of_new_term(meta, election) is meta
    election.unclean = True
    assert of_new_term(meta, election).deleted_before == 6
    election.replies[1] = NewTermReply(5, 3, EntryId(2, 9), 0)
    assert of_new_term(meta, election) is meta


def test_nor_does_the_replica_that_a_recovered_shard_goes_on_from() -> None:
    pending = ShardRecovery(1_000_000, 1, (0, 1, 2), 6)
    meta = ShardMeta(5, 0, (1,), deleted_before=9, recovery=pending)
    election = Election(5, 3, candidate=1, replies={1: NewTermReply(5, 3, EntryId(2, 6), 0)})
    assert of_new_term(meta, election).deleted_before == 6
    done = msgspec.structs.replace(meta, recovery=msgspec.structs.replace(pending, done=True))
    assert of_new_term(done, election) is done
