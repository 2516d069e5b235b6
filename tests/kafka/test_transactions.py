"""Transactions of Kafka's clients: their coordinator, their parts, their end, and the offsets of groups in them."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.errors import TimedOutError
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Transactions
from antiphon.records.batch import read_header
from antiphon.transactions.coordinator import END_WAIT_S
from antiphon.transactions.endings import Endings
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import listening
from tests.kafka.transactional import ADD_PARTITIONS, DESCRIBE, LIST, Transactional, begun, offset_of
from tests.node.in_process import eventually, in_virtual_time

TOPIC = "t"


def markers(nodes: KafkaNodes) -> list[bool]:
    """For each batch that is committed: is it a marker?"""
    return [read_header(one).is_control for one in nodes.batches(TOPIC)]


async def state_is(producer: Transactional, state: str) -> None:
    for _ in range(200):
        if (await producer.describe()).transaction_state == state:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{(await producer.describe()).transaction_state}, not {state}")


@pytest.mark.parametrize("commit", [True, False])
@in_virtual_time
async def test_a_transaction_is_written_decided_and_marked_once(commit: bool) -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        tx = await begun(Transactional(await connect()))
        assert (tx.epoch, (await tx.describe()).transaction_state) == (0, "Empty")
        assert await tx.add((TOPIC, 0)) == [code.NONE]
        assert await tx.write(TOPIC, b"a", b"b") == code.NONE
        assert await tx.write(TOPIC, b"c") == code.NONE
        found = await tx.describe()
        assert (found.transaction_state, found.topics[0].name) == ("Ongoing", TOPIC)
        assert await tx.end(commit=commit) == code.NONE
        await state_is(tx, "CompleteCommit" if commit else "CompleteAbort")
        assert await tx.end(commit=commit) == code.NONE, "a repeat is answered alike"
        assert await tx.end(commit=not commit) == code.INVALID_TXN_STATE
        assert markers(nodes) == [False, False, True]
        # The next one needs to be joined anew.
        assert await tx.write(TOPIC, b"d") == code.INVALID_TXN_STATE
        assert await tx.add((TOPIC, 0)) == [code.NONE]
        assert await tx.write(TOPIC, b"d") == code.NONE
        assert await tx.end(commit=True) == code.NONE
        await state_is(tx, "CompleteCommit")
        assert markers(nodes) == [False, False, True, False, True]


@in_virtual_time
async def test_the_second_version_adds_by_writing_and_has_a_new_epoch_after_each_end() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC, 2)
        tx = await begun(Transactional(await connect()))
        assert (await tx.find("g")).error_code == code.NONE
        for count, commit in enumerate((True, False, True), 1):
            assert await tx.write(TOPIC, b"a", version=12) == code.NONE
            assert await tx.write(TOPIC, b"b", b"c", partition=1, version=12) == code.NONE
            assert await tx.commit_offset("g", TOPIC, count, version=5) == code.NONE
            found = await tx.describe()
            assert (found.transaction_state, found.topics[0].partitions) == ("Ongoing", [0, 1])
            was = (tx.producer_id, tx.epoch)
            assert await tx.end(commit=commit, version=5) == code.NONE
            assert (tx.producer_id, tx.epoch) == (was[0], was[1] + 1)
            late = Transactional(tx.client)
            late.producer_id, late.epoch = was
            late.sequences[TOPIC, 0] = 1
            assert await late.write(TOPIC, b"late", version=12) == code.INVALID_PRODUCER_EPOCH
            assert await late.commit_offset("g", TOPIC, 99, version=5) == code.INVALID_PRODUCER_EPOCH
            assert await late.end(commit=commit, version=5) == code.NONE, "a repeat"
            assert (late.producer_id, late.epoch) == (tx.producer_id, tx.epoch)
        await state_is(tx, "CompleteCommit")
        assert markers(nodes) == [False, True] * 3
        assert await offset_of(tx.client, "g", TOPIC, stable=True) == (code.NONE, 3)
        # It may abort what the coordinator has not heard of, and has nothing to commit.
        assert await tx.end(commit=True, version=5) == code.INVALID_TXN_STATE
        assert await tx.end(commit=False, version=5) == code.NONE
        assert tx.epoch == 4
        await state_is(tx, "CompleteAbort")
        assert markers(nodes) == [False, True] * 3


@in_virtual_time
async def test_a_batch_joins_nothing_of_somebody_elses() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        tx = await begun(Transactional(await connect()))
        other = Transactional(tx.client, "other")
        other.producer_id, other.epoch = tx.producer_id, tx.epoch
        assert await other.write(TOPIC, b"x", version=12) == code.INVALID_PRODUCER_ID_MAPPING
        await nodes.first.gateway.create_topic(CreateTopic("rows", kind=Kind.TABLE))
        assert await tx.write("rows", b"x", version=12) == code.POLICY_VIOLATION
        assert (await tx.describe()).transaction_state == "Empty"


@in_virtual_time
async def test_an_administrator_aborts_by_write_txn_markers_what_is_open_in_a_partition() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC, 2)
        tx = await begun(Transactional(await connect()))
        assert await tx.add((TOPIC, 0), (TOPIC, 1)) == [code.NONE] * 2
        assert await tx.write(TOPIC, b"a") == await tx.write(TOPIC, b"b", partition=1) == code.NONE

        async def mark(epoch: int, *, commit: bool, topic: str = TOPIC, partition: int = 0) -> int:
            parts = [PartitionsOfTopic(name=topic, partitions=[partition])]
            marker = m.TxnMarker(
                producer_id=tx.producer_id,
                producer_epoch=epoch,
                committed=commit,
                topics=parts,
                coordinator_epoch=0,
            )
            told = await tx.client.ask(m.WriteTxnMarkersRequest(markers=[marker]), 27, 1)
            assert told.markers[0].producer_id == tx.producer_id
            return int(told.markers[0].topics[0].partitions[0].error_code)

        assert await mark(tx.epoch, commit=True) == code.INVALID_TXN_STATE
        assert await mark(tx.epoch + 1, commit=False) == code.INVALID_PRODUCER_EPOCH
        assert await mark(tx.epoch, commit=False, partition=7) == code.UNKNOWN_TOPIC_OR_PARTITION
        assert await mark(tx.epoch, commit=False, topic="absent") == code.UNKNOWN_TOPIC_OR_PARTITION
        assert (await tx.describe()).transaction_state == "Ongoing"
        both = m.TxnMarker(
            producer_id=tx.producer_id,
            producer_epoch=tx.epoch,
            committed=False,
            topics=[PartitionsOfTopic(name=TOPIC, partitions=[0, 1])],
            coordinator_epoch=0,
        )
        told = await tx.client.ask(m.WriteTxnMarkersRequest(markers=[both]), 27, 2)
        found = [one.error_code for one in told.markers[0].topics[0].partitions]
        assert found == [code.NONE] * 2, "the second one was aborted with the first"
        await state_is(tx, "CompleteAbort")
        assert markers(nodes) == [False, True]
        assert await mark(tx.epoch, commit=False) == code.NONE, "nothing is open any more"
        assert await tx.end(commit=True) == code.PRODUCER_FENCED


@in_virtual_time
async def test_only_parts_that_were_added_are_taken() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC, 2)
        tx = await begun(Transactional(await connect()))
        assert await tx.write(TOPIC, b"x") == code.INVALID_TXN_STATE
        assert await tx.add((TOPIC, 1)) == [code.NONE]
        assert await tx.write(TOPIC, b"x") == code.INVALID_TXN_STATE
        assert await tx.write(TOPIC, b"x", partition=1) == code.NONE
        assert await tx.write(TOPIC, b"x", partition=1, named=False) == code.INVALID_RECORD
        assert await tx.add((TOPIC, 0), ("absent", 0), (TOPIC, 7)) == [
            code.OPERATION_NOT_ATTEMPTED,
            code.UNKNOWN_TOPIC_OR_PARTITION,
            code.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await tx.add(("__groups", 0)) != [code.NONE]
        assert nodes.end(TOPIC) == 0


@in_virtual_time
async def test_a_zombie_is_fenced_and_its_transaction_aborted() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        old = await begun(Transactional(await connect()))
        await old.add((TOPIC, 0))
        assert await old.write(TOPIC, b"zombie's") == code.NONE
        new = Transactional(await connect())
        await new.find()
        assert await new.init() == code.NONE  # the coordinator waits until the zombie's is aborted everywhere
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)
        assert markers(nodes) == [False, True]
        assert await old.write(TOPIC, b"late") in {code.INVALID_PRODUCER_EPOCH, code.PRODUCER_FENCED}
        assert await old.add((TOPIC, 0)) == [code.PRODUCER_FENCED]
        assert await old.add((TOPIC, 0), version=1) == [code.INVALID_PRODUCER_EPOCH]
        assert await old.end(commit=True) == code.PRODUCER_FENCED
        assert await old.end(commit=True, version=1) == code.INVALID_PRODUCER_EPOCH
        assert await old.init(keep=True) == code.PRODUCER_FENCED
        assert await new.init(keep=True) == code.NONE
        assert new.epoch == old.epoch + 3
        old.producer_id += 1
        assert await old.end(commit=True) == code.INVALID_PRODUCER_ID_MAPPING


@in_virtual_time
async def test_the_next_transaction_begins_once_the_last_ones_markers_are_written() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        tx = await begun(Transactional(await connect()))
        for number in range(3):
            assert await tx.add((TOPIC, 0)) == [code.NONE]  # at once, and not by asking again
            assert markers(nodes) == [False, True] * number
            assert await tx.write(TOPIC, b"x") == code.NONE
            assert await tx.end(commit=True) == code.NONE


@in_virtual_time
async def test_who_begins_while_a_marker_cannot_be_written_is_told_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        tx = await begun(Transactional(await connect()))
        assert await tx.add((TOPIC, 0)) == [code.NONE]
        monkeypatch.setattr(Endings, "carry_out", never)
        assert await tx.end(commit=True) == code.NONE
        began_s = asyncio.get_running_loop().time()
        assert await tx.add((TOPIC, 0)) == [code.CONCURRENT_TRANSACTIONS]
        assert END_WAIT_S <= asyncio.get_running_loop().time() - began_s < 2 * END_WAIT_S


@in_virtual_time
async def test_a_transaction_past_its_time_out_is_aborted() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        tx = Transactional(await connect())
        await begun(tx)
        assert await tx.init(2_000) == code.NONE
        await tx.add((TOPIC, 0))
        assert await tx.write(TOPIC, b"x") == code.NONE
        await asyncio.sleep(1.0)
        assert (await tx.describe()).transaction_state == "Ongoing"
        await asyncio.sleep(3.0)
        await state_is(tx, "CompleteAbort")
        assert markers(nodes) == [False, True]
        assert await tx.end(commit=True) == code.PRODUCER_FENCED
        assert await tx.init(0) == await tx.init(2_000_000) == code.INVALID_TRANSACTION_TIMEOUT


@in_virtual_time
async def test_a_time_out_is_at_most_what_the_operator_allows() -> None:
    async with listening(transactions=Transactions(timeout_max_ms=5_000)) as (_, connect):
        tx = Transactional(await connect())
        await begun(tx, 5_000)
        assert await tx.init(5_001) == code.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("commit", [True, False])
@in_virtual_time
async def test_offsets_of_a_group_come_with_the_transaction(commit: bool) -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        client = await connect()
        tx = await begun(Transactional(client))
        assert await tx.commit_offset("g", TOPIC, 5) != code.NONE, "the group was not added"
        assert await tx.add_group("g") == code.NONE
        assert await tx.commit_offset("g", TOPIC, 7) == code.NONE
        assert await offset_of(client, "g", TOPIC, stable=True) == (code.UNSTABLE_OFFSET_COMMIT, -1)
        assert await offset_of(client, "g", TOPIC, stable=False) == (code.NONE, -1)
        assert await tx.end(commit=commit) == code.NONE
        await state_is(tx, "CompleteCommit" if commit else "CompleteAbort")
        expected = (code.NONE, 7 if commit else -1)
        assert await offset_of(client, "g", TOPIC, stable=True) == expected
        assert await offset_of(client, "g", TOPIC, stable=False) == expected
        # Of the transaction that has ended nothing becomes pending any more.
        assert await tx.commit_offset("g", TOPIC, 9) != code.NONE
        assert await offset_of(client, "g", TOPIC, stable=True) == expected


@in_virtual_time
async def test_transactions_are_listed_and_described() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        client = await connect()
        tx = await begun(Transactional(client))
        await begun(Transactional(client, "other"))
        await tx.add((TOPIC, 0))

        async def names(version: int = 1, **filters: object) -> list[str]:
            asked = {"state_filters": [], "producer_id_filters": [], **filters}
            told = await client.ask(m.ListTransactionsRequest(**asked), LIST, version)  # type: ignore[arg-type]
            assert told.error_code == code.NONE
            return [one.transactional_id for one in told.transaction_states]

        assert await names() == ["other", "tx"]
        assert await names(state_filters=["Ongoing"]) == ["tx"]
        assert await names(producer_id_filters=[tx.producer_id]) == ["tx"]
        assert await names(duration_filter=60_000) == []
        assert await names(2, transactional_id_pattern="t.") == ["tx"]
        assert await names(2, transactional_id_pattern="o.*r|x") == ["other"], "the whole id is matched"
        for none in (None, ""):
            assert await names(2, transactional_id_pattern=none) == ["other", "tx"]
        for wrong in ("(", "(?=x)", "x" * 1025):
            asked = m.ListTransactionsRequest(
                state_filters=[], producer_id_filters=[], transactional_id_pattern=wrong
            )
            refused = await client.ask(asked, LIST, 2)
            assert refused.error_code == code.INVALID_REGULAR_EXPRESSION
            assert refused.transaction_states == []
        absent = m.DescribeTransactionsRequest(transactional_ids=["absent"])
        (told,) = (await client.ask(absent, DESCRIBE, 0)).transaction_states
        assert told.error_code == code.TRANSACTIONAL_ID_NOT_FOUND


@in_virtual_time
async def test_many_transactions_are_asked_about_at_once_by_brokers() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        client = await connect()
        tx = await begun(Transactional(client))

        async def ask(*, verify: bool, version: int = 4) -> int:
            one = m.TxnToJoin(
                transactional_id="tx",
                producer_id=tx.producer_id,
                producer_epoch=tx.epoch,
                verify_only=verify,
                topics=[PartitionsOfTopic(name=TOPIC, partitions=[0])],
            )
            asked = m.AddPartitionsToTxnRequest(transactions=[one])
            told = await client.ask(asked, ADD_PARTITIONS, version)
            assert told.error_code == code.NONE
            (topic,) = told.results_by_transaction[0].topic_results
            return int(topic.partitions[0].error_code)

        assert await ask(verify=True) == code.INVALID_TXN_STATE
        assert await ask(verify=True, version=5) == code.TRANSACTION_ABORTABLE
        assert await ask(verify=False) == code.NONE
        assert await ask(verify=True) == code.NONE


@in_virtual_time
async def test_a_successor_goes_on_with_what_was_decided() -> None:
    """The coordinator is deposed between the decision and the markers."""
    async with listening(3) as (nodes, connect):
        await nodes.create(TOPIC)
        await nodes.lead(TOPIC, 0)
        tx = Transactional(await connect(0))
        await tx.find()
        await eventually(lambda: _has_table(nodes))
        await nodes.lead("__transactions", 0)
        await begun(tx)
        await tx.add((TOPIC, 0))
        assert await tx.write(TOPIC, b"x") == code.NONE
        server = nodes.nodes.servers[0]
        assert server is not None

        async def forgets(*_: object) -> None:
            await asyncio.Event().wait()

        server.transactions.coordinator.endings.carry_out = forgets  # type: ignore[method-assign,assignment]
        assert await tx.end(commit=True) == code.NONE
        await asyncio.sleep(3)
        assert markers(nodes) == [False]
        await nodes.lead("__transactions", 1)
        await eventually(lambda: markers(nodes) == [False, True])
        assert await tx.end(commit=True) == code.NOT_COORDINATOR
        there = Transactional(await connect(1))
        there.producer_id, there.epoch = tx.producer_id, tx.epoch
        await state_is(there, "CompleteCommit")
        # The partition's leader asks the coordinator, which is another node now.
        assert await there.add((TOPIC, 0)) == [code.NONE]
        assert await tx.write(TOPIC, b"y") == code.NONE
        assert await there.end(commit=False) == code.NONE
        await eventually(lambda: markers(nodes) == [False, True, False, True])


@in_virtual_time
async def test_a_decision_whose_write_had_no_known_outcome_is_told() -> None:
    """The client never asks again."""
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        tx = await begun(Transactional(await connect()))
        assert await tx.add((TOPIC, 0)) == [code.NONE]
        assert await tx.write(TOPIC, b"x") == code.NONE
        server = nodes.nodes.servers[0]
        assert server is not None
        write, tries = server.transactions.coordinator._rows.write, 0

        async def lost(*told: Any) -> int:
            nonlocal tries
            tries += 1
            version = await write(*told)
            if tries == 1:
                raise TimedOutError("nobody knows")
            return version

        with patch.object(server.transactions.coordinator._rows, "write", lost):
            assert await tx.end(commit=True) != code.NONE
            await eventually(lambda: markers(nodes) == [False, True])


@in_virtual_time
async def test_a_topic_that_is_deleted_does_not_hold_up_the_end() -> None:
    async with listening() as (nodes, connect):
        await nodes.create(TOPIC)
        await nodes.create("other")
        tx = await begun(Transactional(await connect()))
        assert await tx.add((TOPIC, 0), ("other", 0)) == [code.NONE, code.NONE]
        assert await tx.write(TOPIC, b"x") == code.NONE
        await nodes.first.gateway.delete_topic("other")
        assert await tx.end(commit=True) == code.NONE
        await state_is(tx, "CompleteCommit")
        assert markers(nodes) == [False, True]


def _has_table(nodes: KafkaNodes) -> bool:
    return all(
        any(topic.name == "__transactions" for topic in node.gateway.metadata.topics)
        for node in nodes.nodes.nodes.values()
    )
