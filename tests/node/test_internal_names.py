"""What belongs to the cluster is written by the cluster: ordinary writes of clients are refused with a reason."""

from typing import TYPE_CHECKING, Any

import pytest

import antiphon.aio
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.model.internal import ARCHIVE_TABLE, GROUPS_TABLE, KINDS, STAGED_TOPIC, TRANSACTIONS_TABLE
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    AlterTopic,
    AppendBatch,
    CreateTopic,
    Delete,
    DeleteTopic,
    Put,
    TableWrite,
    TrimShard,
)
from antiphon.node.node import Node
from antiphon.records.builder import build_batch
from tests.node.in_process import Nodes, ask, cluster_of, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROW = Put(b"offset/x", b"")


async def internal_shards(nodes: Nodes) -> dict[str, int]:
    """All of the cluster's own, as nodes and jobs make them; shard ids by name."""
    found = {}
    for name, kind in KINDS.items():
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic(name, kind, internal=True))
        found[name] = topic.shards[0].shard_id
        await nodes.leader(found[name])
    return found


async def answer_of(node: Node, body: Any, payload: bytes = b"") -> Any:
    """What a client's request is answered with, or the error."""
    try:
        return await ask(node.meta().native, body, payload)
    except AntiphonError as error:
        return error


@in_virtual_time
async def test_ordinary_writes_to_what_belongs_to_the_cluster_are_refused() -> None:
    async with cluster_of(1) as nodes:
        node, shards = nodes.nodes[0], await internal_shards(nodes)
        batch = bytes(build_batch([(None, b"x", [], 1)]))
        for name, shard_id in shards.items():
            wanted: list[tuple[Any, bytes]] = [
                (AppendBatch(shard_id), batch),
                (AppendBatch(shard_id, expected_offset=0), batch),
                (TableWrite(shard_id, (ROW,)), b""),
                (TableWrite(shard_id, (Delete(b"x"),), bulk=True), b""),
                (TrimShard(shard_id, 0), b""),
                (DeleteTopic(name), b""),
                (AlterTopic(name, {"retention.ms": "0"}), b""),
                (AlterTopic(name, shards=9), b""),
            ]
            for body, payload in wanted:
                error = await answer_of(node, body, payload)
                assert isinstance(error, InvalidRequestError), (name, body, error)
                assert "belongs to the" in error.message, error.message
        assert (node.metrics.appends, node.metrics.table_ops) == (0, 0)


@in_virtual_time
async def test_jobs_write_where_they_keep_their_state_but_not_where_nodes_do() -> None:
    async with cluster_of(1) as nodes:
        node, shards = nodes.nodes[0], await internal_shards(nodes)
        batch = bytes(build_batch([(None, b"x", [], 1)]))
        for name, shard_id in shards.items():
            write: Any = TableWrite(shard_id, (ROW,), internal=True)
            if name == STAGED_TOPIC:
                write = AppendBatch(shard_id, internal=True)
            found = await answer_of(node, write, batch if name == STAGED_TOPIC else b"")
            trimmed = await answer_of(node, TrimShard(shard_id, 0, internal=True))
            is_refused = isinstance(found, InvalidRequestError), isinstance(trimmed, InvalidRequestError)
            of_nodes = name in {GROUPS_TABLE, TRANSACTIONS_TABLE}
            assert is_refused == (of_nodes, of_nodes), name
        more = await answer_of(node, AlterTopic(STAGED_TOPIC, replicas=1))
        assert not isinstance(more, AntiphonError), "an operator may well want more or fewer replicas"


@in_virtual_time
async def test_clients_in_python_are_refused_likewise() -> None:
    async with cluster_of(1) as nodes:
        await internal_shards(nodes)
        address = nodes.members[0].native

        calls: list[Callable[[antiphon.aio.AsyncClient], Awaitable[Any]]] = [
            lambda db: db.table(ARCHIVE_TABLE).put(b"k", b"v"),
            lambda db: db.table(GROUPS_TABLE).put(b"offset/x", b""),
            lambda db: db.topic(STAGED_TOPIC).append(b"v"),
            lambda db: db.delete_topic(ARCHIVE_TABLE),
        ]
        async with antiphon.aio.connect(address) as db:
            for call in calls:
                with pytest.raises(InvalidRequestError, match="belongs to the"):
                    await call(db)


@in_virtual_time
async def test_nobody_makes_them_as_something_else() -> None:
    """They cannot be deleted, so who made one wrong would have spoilt it for good."""
    async with cluster_of(1) as nodes:
        for name, kind in KINDS.items():
            other = Kind.TOPIC if kind is Kind.TABLE else Kind.TABLE
            with pytest.raises(InvalidRequestError, match=f"is a {kind.value}"):
                await nodes.nodes[0].gateway.create_topic(CreateTopic(name, other, internal=True))
        error = await answer_of(nodes.nodes[0], CreateTopic(GROUPS_TABLE, Kind.TABLE, 3, internal=True))
        assert isinstance(error, InvalidRequestError)
        assert "only its nodes" in error.message
