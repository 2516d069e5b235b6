"""All of a node's part in transactions, for listeners of any protocol: one of these is made for a node, and they share it.

Other nodes, and the native listener, ask by the bodies of messages (`answer`); the Kafka listener calls the parts.
"""

from typing import Any, Final

from antiphon.coordination.transactions import Producer
from antiphon.gateway.interface import Gateway
from antiphon.model.cluster import AskShareStates, AskTransaction, EndOffsets, SetShareSettings
from antiphon.model.groups import GetGroups
from antiphon.model.internal import GROUPS_TABLE
from antiphon.model.requests import Done
from antiphon.transactions.asking import TransactionAsker
from antiphon.transactions.asking import answer as answer_of
from antiphon.transactions.coordinator import (
    DEFAULT_TRANSACTION_CONFIG,
    TransactionConfig,
    TransactionCoordinator,
)
from antiphon.transactions.group_offsets import GroupOffsets
from antiphon.transactions.internal_table import InternalTable
from antiphon.transactions.operator import answer_operator
from antiphon.transactions.pending_offsets import PendingOffsets
from antiphon.transactions.share_states import ShareStateAsker, ShareStateKeeper
from antiphon.transactions.share_states import answer_of as answer_of_shares
from antiphon.transactions.steps import Parts, Steps
from antiphon.transactions.told_groups import GroupTeller

GROUP_SHARDS: Final = 4


class TransactionService:
    """See the module's text.

    Attributes:
        coordinator: of the transactional ids whose shard this node leads.
        asker: asks the coordinator of any id, for appends and offsets that come here.
        groups: where groups are; `offsets` and `pending` are the offsets in that table, `share_states` share-partitions.
        share_asker: asks any group's coordinator for those.
        told_groups: what operators are told of groups.
    """

    def __init__(self, gateway: Gateway, config: TransactionConfig = DEFAULT_TRANSACTION_CONFIG) -> None:
        self.coordinator = TransactionCoordinator(gateway, config)
        self.asker = TransactionAsker(gateway, self.coordinator)
        self.groups = InternalTable(gateway, GROUPS_TABLE, GROUP_SHARDS, "group")
        self.offsets = GroupOffsets(gateway)
        self.pending = PendingOffsets(gateway, self.offsets)
        self.share_states = ShareStateKeeper(gateway, self.groups)
        self.share_asker = ShareStateAsker(gateway, self.share_states)
        self.told_groups = GroupTeller(gateway, self.groups, self.offsets, self.share_states)
        self._gateway = gateway
        self._steps = Steps(
            gateway, Parts(self.coordinator, self.asker, self.groups, self.offsets, self.pending)
        )

    def start(self) -> None:
        """Begin to coordinate, and to answer."""
        self.coordinator.start()
        self._gateway.questions.serve(self.answer)

    async def stop(self) -> None:
        """Answer nothing, and coordinate nothing, any more."""
        self._gateway.questions.serve(None)
        await self.coordinator.stop()
        await self.groups.stop()

    async def answer(self, body: Any) -> Any:
        """What other nodes, operators and native clients ask of this node's coordinators; raises AntiphonError."""
        if isinstance(body, EndOffsets):
            await self.end_offsets(body)
            return Done()
        if isinstance(body, AskTransaction):
            return await answer_of(self.coordinator, body)
        if isinstance(body, AskShareStates | SetShareSettings):
            return await answer_of_shares(self.share_states, body)
        if isinstance(body, GetGroups):
            return await self.told_groups.answer(body)
        if self._steps.answers(body):
            return await self._steps.answer(body)
        return await answer_operator(self.coordinator, body)

    async def end_offsets(self, asked: EndOffsets) -> None:
        """A transaction has ended. Raises what the table's calls raise, NotLeaderError where another node has the group."""
        self.groups.home(asked.group)
        producer = Producer(asked.producer_id, asked.epoch)
        await self.pending.end(asked.group, producer, asked.number, commit=asked.commit)
