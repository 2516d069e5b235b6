"""What errors say of a write: whether it may have been carried out, and whether asking again does harm."""

import pickle

import pytest

import antiphon
from antiphon import errors
from antiphon.client.aio import AsyncClient
from antiphon.client.connection_errors import ConnectionLostError
from antiphon.errors import (
    ERRORS,
    AntiphonError,
    InvalidRequestError,
    KeyNotFoundError,
    TimedOutError,
    TopicExistsError,
    UnknownShardError,
    UnknownTopicError,
    VersionMismatchError,
    from_wire,
)
from antiphon.model.requests import AppendBatch, CreateTopic, Fetch, TableGet, TableWrite
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, SILENT, FailingNodes


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (TimedOutError, TimeoutError),
        (KeyNotFoundError, KeyError),
        (UnknownTopicError, LookupError),
        (UnknownShardError, LookupError),
        (errors.SessionNotFoundError, LookupError),
        (errors.UnreachableError, ConnectionError),
        (ConnectionLostError, ConnectionError),
    ],
)
def test_errors_are_what_python_calls_them(error: type[AntiphonError], base: type[Exception]) -> None:
    found = error("said in words", sent=False)
    assert isinstance(found, base)
    assert (str(found), found.message, found.details) == ("said in words", "said in words", {"sent": False})
    again = pickle.loads(pickle.dumps(from_wire(found.code, found.message, found.details)))
    assert (str(again), again.details) == ("said in words", {"sent": False})


def test_what_users_catch_is_at_the_top() -> None:
    for name in antiphon.__all__:
        if name.endswith("Error"):
            assert getattr(antiphon, name) is getattr(errors, name)
    for error in ("UnreachableError", "UnavailableError", "InvalidRequestError", "OffsetOutOfRangeError"):
        assert error in antiphon.__all__


def test_an_unknown_outcome_is_never_retriable() -> None:
    for error in ERRORS.values():
        assert not error("text").outcome_unknown
        assert not error("text", sent=True).retriable
        assert error("text", sent=False).retriable is error.retriable
        found = error("text").with_unknown_outcome()
        assert (found.outcome_unknown, found.retriable) == (True, False)


@in_a_cluster
async def test_a_mismatch_says_both_versions(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t")
    version = await table.put("k", b"1")
    with pytest.raises(VersionMismatchError) as caught:
        await table.put("k", b"2", expected_version=antiphon.ABSENT)
    assert (caught.value.expected, caught.value.actual) == (antiphon.ABSENT, version.id)


@in_a_cluster
async def test_a_write_that_was_sent_has_an_unknown_outcome(cluster: FailingNodes, db: AsyncClient) -> None:
    topic, table = await db.create_topic("t"), await db.create_table("table")
    await topic.append(b"1")
    await table.put("k", b"1")
    cluster.fail(AppendBatch, SILENT)
    cluster.fail(TableWrite, SILENT)
    for write in (topic.append(b"2", timeout_s=0.2), table.put("k", b"2", timeout_s=0.2)):
        with pytest.raises(TimedOutError) as caught:
            await write
        assert caught.value.outcome_unknown
        assert not caught.value.retriable


@in_a_cluster
async def test_a_write_whose_tries_all_fail(cluster: FailingNodes, db: AsyncClient) -> None:
    """A lost connection may hide that it was carried out; a refusal does not."""
    topic = await db.create_topic("t")
    await topic.append(b"1")
    cluster.fail(AppendBatch, *[DROP_AFTER] * 50)
    with pytest.raises(TimedOutError) as caught:
        await topic.append(b"2", timeout_s=0.5)
    assert caught.value.outcome_unknown
    cluster.faults.clear()
    cluster.fail(CreateTopic, *[DROP_BEFORE] * 50)
    with pytest.raises(TimedOutError) as caught:
        await db.create_topic("other", timeout_s=0.5)
    assert caught.value.outcome_unknown
    assert not caught.value.retriable


@in_a_cluster
async def test_what_was_never_sent_was_not_carried_out(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"1")
    for node in range(3):
        await cluster.nodes.stop(node)
    for write in (topic.append(b"2", timeout_s=1), db.create_topic("other", timeout_s=1)):
        with pytest.raises(TimedOutError) as caught:
            await write
        assert not caught.value.outcome_unknown
        assert caught.value.retriable


@in_a_cluster
async def test_reads_have_no_outcome(cluster: FailingNodes, db: AsyncClient) -> None:
    topic, table = await db.create_topic("t"), await db.create_table("table")
    await topic.append(b"1")
    for kind in (Fetch, TableGet):
        cluster.fail(kind, *[SILENT] * 50)
    for read in (anext(topic.read(timeout_s=0.2)), table.get("k", timeout_s=0.2)):
        with pytest.raises(TimedOutError) as caught:
            await read
        assert not caught.value.outcome_unknown
        assert caught.value.retriable


@in_a_cluster
async def test_the_word_of_a_node_is_no_end_of_the_clients_own_time(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    """A node's TimedOutError is a TimeoutError, too, and is tried again as before."""
    topic = await db.create_topic("t")
    await topic.append(b"1")
    cluster.fail(Fetch, TimedOutError("the node's own"))
    assert [record.value async for record in topic.read()] == [b"1"]
    cluster.fail(CreateTopic, TimedOutError("the node's own"))
    await db.create_topic("other")
    cluster.fail(CreateTopic, DROP_AFTER, TopicExistsError("there"))
    await db.create_topic("third")
    with pytest.raises(InvalidRequestError):
        await db.create_topic("")
