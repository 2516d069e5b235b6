"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and ListTransactions."""

from contextlib import suppress
from typing import Final

from antiphon import system
from antiphon.coordination.patterns import BadRegexError, compiled
from antiphon.coordination.transactions import NOBODY, PREPARED, Producer, Refused, Row, State
from antiphon.errors import AntiphonError, InvalidRequestError, UnknownShardError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.handlers.refusals import RefusedError, alike, coordinator_errors
from antiphon.kafka.handlers.rights import check, may, sees
from antiphon.kafka.matching import matching
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.messages.shared import PartitionsOfTopic, TopicCodes
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.transaction_codes import code_of_refusal
from antiphon.model.access import Operation, Resource
from antiphon.model.internal import is_internal
from antiphon.security.authorizer import Rights
from antiphon.transactions.coordinator import TransactionCoordinator

ID_BYTES_MAX: Final = 1024
INIT_KNOWS_FENCED: Final = 4  # versions from which clients know PRODUCER_FENCED
STEPS_KNOW_FENCED: Final = 2
FIRST_OF_BROKERS: Final = 4  # AddPartitionsToTxn from which only a broker asks, for many clients
FIRST_ABORTABLE: Final = 5
FIRST_RAISING: Final = 5  # EndTxn from which the producer gets a new epoch


def is_transactional_id(name: str) -> bool:
    """May a transactional id be called that?"""
    return 0 < len(name.encode()) <= ID_BYTES_MAX


def may_transact(rights: Rights, name: str) -> bool:
    """May the client use this transactional id?"""
    return rights.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, name)


def check_transacts(rights: Rights, name: str, operation: Operation = Operation.WRITE) -> None:
    """Raise RefusedError where nothing has this transactional id, or the client may not use it."""
    if not is_transactional_id(name):
        raise RefusedError(code.INVALID_REQUEST)
    check(rights, operation, Resource.TRANSACTIONAL_ID, name)


class TransactionHandler:
    """Takes requests to the coordinator's calls, and their answers back."""

    def __init__(
        self,
        gateway: Gateway,
        cache: MetadataCache,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
    ) -> None:
        self._gateway = gateway
        self._cache = cache
        self._coordinator = coordinator
        self._groups = groups

    # -- InitProducerId -------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, request: cm.InitProducerIdRequest, context: RequestContext
    ) -> cm.InitProducerIdResponse:
        """A fresh producer id at epoch 0; with a transactional id that one's producer, whose epoch rises."""
        name, rights = request.transactional_id, context.rights
        if name is not None:
            check_transacts(rights, name)
            return await self._init(name, request, context)
        if not rights.sees(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER) and not rights.may_any(
            Operation.WRITE, Resource.TOPIC
        ):
            check(rights, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)
        try:
            producer_id = await self._gateway.new_producer_id()
        except AntiphonError as error:
            wrong = isinstance(error, InvalidRequestError)
            refused_as = code.INVALID_REQUEST if wrong else code.COORDINATOR_NOT_AVAILABLE
            raise RefusedError(refused_as) from error
        return cm.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def _init(
        self, name: str, request: cm.InitProducerIdRequest, context: RequestContext
    ) -> cm.InitProducerIdResponse:
        has_id, has_epoch = request.producer_id != NOBODY, request.producer_epoch != NOBODY
        if has_id != has_epoch:
            raise RefusedError(code.INVALID_REQUEST)
        expected = Producer(request.producer_id, request.producer_epoch) if has_id else None
        with coordinator_errors():
            refused, row = await self._coordinator.init(name, request.transaction_timeout_ms, expected)
        if refused is not None or row is None:
            knows = context.version >= INIT_KNOWS_FENCED
            return cm.InitProducerIdResponse(error_code=code_of_refusal(refused, knows_fenced=knows))
        return cm.InitProducerIdResponse(producer_id=row.producer_id, producer_epoch=row.epoch)

    # -- what takes part ------------------------------------------------------------------------------------------

    async def add_partitions(
        self, request: m.AddPartitionsToTxnRequest, context: RequestContext
    ) -> m.AddPartitionsToTxnResponse:
        """AddPartitionsToTxn: of one transaction of a client's, or of many for the clients of a broker."""
        if context.version < FIRST_OF_BROKERS:
            one = m.TxnToJoin(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                topics=request.topics,
            )
            return m.AddPartitionsToTxnResponse(results_by_topic=await self._join(one, context, checked=True))
        check(context.rights, Operation.CLUSTER_ACTION, Resource.CLUSTER)
        results = [
            m.TxnResult(
                transactional_id=one.transactional_id,
                topic_results=await self._join(one, context, checked=False),
            )
            async for one in context.turn_budget.each(request.transactions)
        ]
        return m.AddPartitionsToTxnResponse(results_by_transaction=results)

    async def _join(self, one: m.TxnToJoin, context: RequestContext, *, checked: bool) -> list[TopicCodes]:
        """All of the partitions take part, or none does. `checked`: the client's own rights count."""
        name, producer = one.transactional_id, Producer(one.producer_id, one.producer_epoch)
        if not is_transactional_id(name):
            return alike(one.topics, code.INVALID_REQUEST)
        if checked and not may_transact(context.rights, name):
            return alike(one.topics, code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        shards, problems = self._shards(one.topics, context.rights if checked else None)
        if problems:
            return alike(one.topics, code.OPERATION_NOT_ATTEMPTED, problems)
        try:
            if one.verify_only:
                refused = await self._verify(name, producer, shards)
            else:
                refused = await self._coordinator.join(name, producer, shards, [])
        except AntiphonError as error:
            return alike(one.topics, code.coordinator_code_of(error))
        knows = context.version >= STEPS_KNOW_FENCED
        abortable = context.version >= FIRST_ABORTABLE
        return alike(one.topics, code_of_refusal(refused, knows_fenced=knows, knows_abortable=abortable))

    async def _verify(self, name: str, producer: Producer, shards: list[int]) -> Refused | None:
        for shard_id in shards:
            refused, _ = await self._coordinator.check(name, producer, shard_id, None)
            if refused is not None:
                return refused
        return None

    def _shards(
        self, topics: list[PartitionsOfTopic], rights: Rights | None
    ) -> tuple[list[int], dict[tuple[str, int], int]]:
        """The shards of partitions; and what is wrong with which of them."""
        shards: list[int] = []
        problems: dict[tuple[str, int], int] = {}
        for topic in topics:
            denied = rights is not None and not may(self._gateway, rights, Operation.WRITE, topic.name)
            for index in topic.partitions:
                problem, shard_id = (
                    (code.TOPIC_AUTHORIZATION_FAILED, -1) if denied else self._shard(topic.name, index)
                )
                if problem:
                    problems[topic.name, index] = problem
                shards.append(shard_id)
        return shards, problems

    def _shard(self, name: str, index: int) -> tuple[int, int]:
        """What is wrong with a partition, and its shard."""
        try:
            topic = self._gateway.topic(name)
            shard = self._cache.shard_at(topic, index)
            if shard is None:
                return code.UNKNOWN_TOPIC_OR_PARTITION, -1
            if is_internal(topic):
                return code.TOPIC_AUTHORIZATION_FAILED, -1
            self._gateway.transactions.check_taken(shard.shard_id)
        except UnknownTopicError:
            return code.UNKNOWN_TOPIC_OR_PARTITION, -1
        except AntiphonError as error:
            return code.code_of(error), -1
        return code.NONE, shard.shard_id

    async def add_offsets(
        self, request: m.AddOffsetsToTxnRequest, context: RequestContext
    ) -> m.AddOffsetsToTxnResponse:
        """AddOffsetsToTxn: a group takes part."""
        name, rights = request.transactional_id, context.rights
        check_transacts(rights, name)
        check(rights, Operation.READ, Resource.GROUP, request.group_id)
        if not 0 < len(request.group_id.encode()) <= ID_BYTES_MAX:
            raise RefusedError(code.INVALID_GROUP_ID)
        producer = Producer(request.producer_id, request.producer_epoch)
        with coordinator_errors():
            # A group that has no shard could never be told the end.
            await self._groups.locate(request.group_id)
            refused = await self._coordinator.join(name, producer, [], [request.group_id])
        knows = context.version >= STEPS_KNOW_FENCED
        return m.AddOffsetsToTxnResponse(error_code=code_of_refusal(refused, knows_fenced=knows))

    async def end(self, request: m.EndTxnRequest, context: RequestContext) -> m.EndTxnResponse:
        """EndTxn: decided when it is answered. From version 5 on the producer has a new epoch then (KIP-890)."""
        name = request.transactional_id
        check_transacts(context.rights, name)
        producer = Producer(request.producer_id, request.producer_epoch)
        now: Producer | None = None
        with coordinator_errors():
            if context.version >= FIRST_RAISING:
                refused, now = await self._coordinator.end_and_raise(name, producer, commit=request.committed)
            else:
                refused = await self._coordinator.end(name, producer, commit=request.committed)
        if refused is None and now is not None:
            return m.EndTxnResponse(
                producer_id=now.producer_id, producer_epoch=now.epoch, error_code=code.NONE
            )
        knows = context.version >= STEPS_KNOW_FENCED
        return m.EndTxnResponse(error_code=code_of_refusal(refused, knows_fenced=knows))

    # -- for operators --------------------------------------------------------------------------------------------

    async def describe(
        self, request: m.DescribeTransactionsRequest, context: RequestContext
    ) -> m.DescribeTransactionsResponse:
        """DescribeTransactions."""
        found = [
            await self._described(name, context.rights)
            async for name in context.turn_budget.each(request.transactional_ids)
        ]
        return m.DescribeTransactionsResponse(transaction_states=found)

    async def _described(self, name: str, rights: Rights) -> m.DescribedTransaction:
        try:
            row = await self._row(name, rights)
        except RefusedError as refused:
            return m.DescribedTransaction(error_code=refused.error_code, transactional_id=name)
        return m.DescribedTransaction(
            error_code=code.NONE,
            transactional_id=name,
            transaction_state=str(row.state),
            transaction_timeout_ms=row.timeout_ms,
            transaction_start_time_ms=row.began_ms,
            producer_id=row.producer_id,
            producer_epoch=row.epoch,
            topics=self._topics(row, rights),
        )

    async def _row(self, name: str, rights: Rights) -> Row:
        check_transacts(rights, name, Operation.DESCRIBE)
        row = None
        with coordinator_errors(), suppress(UnknownTopicError):
            row = await self._coordinator.describe(name)
        if row is None:
            raise RefusedError(code.TRANSACTIONAL_ID_NOT_FOUND)
        return row

    def _topics(self, row: Row, rights: Rights) -> list[PartitionsOfTopic]:
        """The partitions that take part, of topics that are there and may be seen."""
        by_topic: dict[str, list[int]] = {}
        for shard_id in row.shards:
            try:
                topic, shard = self._gateway.shard(shard_id)
            except (UnknownShardError, UnknownTopicError):
                continue
            if sees(self._gateway, rights, topic.name):
                by_topic.setdefault(topic.name, []).append(shard.index)
        return [
            PartitionsOfTopic(name=name, partitions=sorted(indexes))
            for name, indexes in sorted(by_topic.items())
        ]

    async def list_transactions(
        self, request: m.ListTransactionsRequest, context: RequestContext
    ) -> m.ListTransactionsResponse:
        """ListTransactions: those that this node coordinates."""
        known = {str(state) for state in State}
        unknown = [state for state in request.state_filters if state not in known]
        states, producers = set(request.state_filters), set(request.producer_id_filters)
        longest_start_ms = system.wall_ms() - request.duration_filter
        with coordinator_errors():
            rows = await self._coordinator.listed()

        def is_wanted(name: str, row: Row) -> bool:
            running = row.state is State.ONGOING or row.state in PREPARED
            return (
                (not states or row.state in states)
                and (not producers or row.producer_id in producers)
                and (request.duration_filter < 0 or (running and row.began_ms < longest_start_ms))
                and context.rights.sees(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name)
            )

        wanted = {name: row for name, row in rows if is_wanted(name, row)}
        regex = request.transactional_id_pattern
        try:
            names = await matching(compiled(regex), wanted, context.turn) if regex else wanted
        except BadRegexError:
            raise RefusedError(code.INVALID_REGULAR_EXPRESSION) from None
        return m.ListTransactionsResponse(
            unknown_state_filters=unknown,
            transaction_states=[
                m.ListedTransaction(
                    transactional_id=name,
                    producer_id=wanted[name].producer_id,
                    transaction_state=str(wanted[name].state),
                )
                for name in names
            ],
        )
