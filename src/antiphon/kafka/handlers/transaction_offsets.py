"""TxnOffsetCommit: offsets that become a group's with a transaction."""

from typing import Final

from antiphon.coordination.transactions import Producer
from antiphon.errors import AntiphonError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.handlers.group_offsets import GroupOffsetsHandler
from antiphon.kafka.handlers.transactions import may_transact
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.transaction_codes import produce_code_of
from antiphon.model.access import Operation, Resource
from antiphon.transactions.asking import TransactionAsker
from antiphon.transactions.group_offsets import OffsetAt
from antiphon.transactions.pending_offsets import PendingOffsets

FIRST_JOINING: Final = 5  # version from which offsets have their group take part in the transaction (KIP-890)


class TransactionOffsetsHandler:
    """Offsets stay pending where the group's coordinator is, until the transaction's marker comes there."""

    def __init__(
        self,
        groups: GroupCoordinator,
        pending: PendingOffsets,
        checks: GroupOffsetsHandler,
        asker: TransactionAsker,
    ) -> None:
        self._groups = groups
        self._pending = pending
        self._checks = checks
        self._asker = asker

    async def commit(
        self, request: m.TxnOffsetCommitRequest, context: RequestContext
    ) -> m.TxnOffsetCommitResponse:
        """TxnOffsetCommit: pending, and durable as that, when it is answered."""
        outcomes, offsets = self._checks.checked(
            request.topics, await self._refusal(request, context), context.rights
        )
        if offsets:
            failed = await self._add(request, offsets, joins=context.version >= FIRST_JOINING)
            for topic in outcomes:
                for partition in topic.partitions:
                    partition.error_code = partition.error_code or failed
        return m.TxnOffsetCommitResponse(topics=outcomes)

    async def _refusal(self, request: m.TxnOffsetCommitRequest, context: RequestContext) -> int:
        """What is wrong with the request as a whole."""
        rights = context.rights
        if not may_transact(rights, request.transactional_id):
            return code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not rights.may(Operation.READ, Resource.GROUP, request.group_id):
            return code.GROUP_AUTHORIZATION_FAILED
        try:
            self._groups.home(request.group_id)
            if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
                return code.NONE
            await self._groups.ready(request.group_id)
            error = self._groups.check_commit(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id
            )
            # Producers know of generations only.
            return code.ILLEGAL_GENERATION if error == code.STALE_MEMBER_EPOCH else error
        except AntiphonError as error:
            return code.coordinator_code_of(error)

    async def _add(self, request: m.TxnOffsetCommitRequest, offsets: list[OffsetAt], *, joins: bool) -> int:
        group, producer = request.group_id, Producer(request.producer_id, request.producer_epoch)
        try:
            number, refused = await self._asker.number_of(
                request.transactional_id, producer, group=group, joins=joins
            )
            if refused is None:
                refused = await self._pending.add(group, producer, number, offsets)
        except AntiphonError as error:
            return code.coordinator_code_of(error)
        if refused is None:
            return code.NONE
        failed = produce_code_of(refused)
        return code.COORDINATOR_LOAD_IN_PROGRESS if failed == code.NOT_ENOUGH_REPLICAS else failed
