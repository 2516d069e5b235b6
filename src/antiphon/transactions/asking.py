"""What a partition's leader, or a group's coordinator, asks before it takes a first part of a transaction.

Only the transactional id's coordinator knows whether the partition takes part in the transaction that is under way. Its
answer has the transaction's number, by which the append is refused if the transaction has ended by then. A partition in
which the producer's transaction is open already has asked before.

Clients of Kafka's second version of transactions (KIP-890) say nothing to the coordinator themselves: for these the question
is at the same time the request that the partition, or the group, takes part.
"""

import asyncio
from typing import Final, NamedTuple

from antiphon.coordination.transactions import Producer, Refused
from antiphon.errors import InternalError, OverloadedError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.model.cluster import AskTransaction, TransactionAnswer
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.transactions.coordinator import TransactionCoordinator
from antiphon.transactions.internal_table import TRY_S, shard_of_name, with_tries

ASKED_MAX: Final = 10_000  # questions that are open on this node


class Numbered(NamedTuple):
    """A coordinator's answer: the transaction's number, or why there is none."""

    number: int
    refused: Refused | None = None


class _Question(NamedTuple):
    name: str
    producer: Producer
    shard_id: int


class TransactionAsker:
    """Asks for one node. Many batches of a producer for one partition are one question, and keep their order."""

    def __init__(self, gateway: Gateway, coordinator: TransactionCoordinator) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._open: dict[_Question, asyncio.Task[Numbered]] = {}

    def before_append(
        self, name: str, producer: Producer, shard_id: int, *, joins: bool = False
    ) -> "asyncio.Task[Numbered] | None":
        """What a batch has to wait for; None where its transaction is open in the partition.

        A batch that comes while one before it waits waits for the same answer, so that none overtakes another. `joins`: the
        partition takes part by this. Raises OverloadedError; with `joins` WrongKindError where a partition takes no parts.
        """
        question = _Question(name, producer, shard_id)
        asking = self._open.get(question)
        if asking is None:
            if self._gateway.transactions.has_open(shard_id, producer.producer_id, producer.epoch):
                return None
            if len(self._open) >= ASKED_MAX:
                raise OverloadedError(f"{ASKED_MAX} questions about transactions are open here already")
            if joins:
                self._gateway.transactions.check_taken(shard_id)
            work = self.number_of(name, producer, shard_id=shard_id, joins=joins)
            asking = self._open[question] = asyncio.get_running_loop().create_task(
                work, name="ask transaction"
            )
            asking.add_done_callback(lambda _: self._open.pop(question, None))
        return asking

    async def number_of(
        self,
        name: str,
        producer: Producer,
        *,
        shard_id: int | None = None,
        group: str | None = None,
        joins: bool = False,
    ) -> Numbered:
        """Does the partition, or the group, take part? With `joins` it does by this.

        Raises what is to be tried again by the client.
        """
        known_at = self._gateway.metadata_version if joins else -1
        asked = AskTransaction(name, producer.producer_id, producer.epoch, shard_id, group, joins, known_at)
        try:
            return await with_tries(lambda: self._ask(asked))
        except UnknownTopicError:
            return Numbered(-1, Refused.UNKNOWN_PRODUCER)  # there is no transactional id yet

    async def _ask(self, asked: AskTransaction) -> Numbered:
        leader = shard_of_name(self._gateway, TRANSACTIONS_TABLE, asked.transactional_id).leader
        if leader == self._gateway.node_id:
            refused, number = await self._coordinator.answer(asked)
            return Numbered(number, refused)
        reply = await self._gateway.questions.ask(leader, asked, TRY_S)
        if not isinstance(reply, TransactionAnswer):
            raise InternalError(
                f"node {leader} answered a question about a transaction with {type(reply).__name__}"
            )
        return Numbered(reply.number, Refused(reply.refused) if reply.refused else None)


async def answer(coordinator: TransactionCoordinator, asked: AskTransaction) -> TransactionAnswer:
    """What another node is told."""
    refused, number = await coordinator.answer(asked)
    return TransactionAnswer(number, refused.value if refused is not None else "")
