"""Commands that are answered when shards have leaders: new topics and shards, elections and transfers of leadership."""

from dataclasses import dataclass

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.fences import Fence, can_be_met, voting
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.state import ClusterState
from antiphon.coordination.timers import Timers
from antiphon.errors import AntiphonError, OverloadedError, UnavailableError
from antiphon.model.cluster import CommandDone
from antiphon.model.metadata import ShardMeta
from antiphon.replication.messages import NodeId

COMMANDS_WAITING_MAX = 10_000
TRANSFER_MS = 5_000  # for a leader to hand over
TRANSFERS_PER_TICK = 1_000


@dataclass(slots=True)
class _Creation:
    """A request that is answered when all of these shards have leaders."""

    token: int
    pending: dict[int, None]


class WaitingCommands:
    """See the module's text. A token says which command is meant; `wanted` is the node that should lead, -1: any."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._creations: dict[bytes, list[_Creation]] = {}  # by topic id
        self._elections: dict[int, list[tuple[int, NodeId]]] = {}  # by shard id: (token, wanted)
        self._transfers: dict[int, list[tuple[int, NodeId]]] = {}  # by shard id: (token, wanted)
        self._transfer_ends: Timers[tuple[int, int]] = Timers()  # (shard id, token)
        self._count = 0

    def check_room(self) -> None:
        """Raises OverloadedError where no more commands may wait."""
        if self._count >= COMMANDS_WAITING_MAX:
            raise OverloadedError(f"{self._count} commands are waiting for leaders already")

    def for_shards(self, token: int, topic_id: bytes, shard_ids: list[int]) -> None:
        """Answer when each of these new shards has had a leader."""
        self._count += 1
        self._creations.setdefault(topic_id, []).append(_Creation(token, dict.fromkeys(shard_ids)))

    def for_election(self, token: int, shard_id: int, wanted: NodeId) -> None:
        """Answer when the open election of the shard is over."""
        self._count += 1
        self._elections.setdefault(shard_id, []).append((token, wanted))

    def for_transfer(self, token: int, shard_id: int, wanted: NodeId, now_ms: int) -> None:
        """Answer when `wanted` leads the shard, or after a while."""
        self._count += 1
        self._transfers.setdefault(shard_id, []).append((token, wanted))
        self._transfer_ends.add(now_ms + TRANSFER_MS, (shard_id, token))

    def leader_found(self, shard: ShardRecord, version: int) -> None:
        """It is committed, in record `version`, that the shard has a leader."""
        meta, done = shard.meta, CommandDone(version)
        left = []
        for creation in self._creations.pop(shard.topic_id, ()):
            creation.pending.pop(meta.shard_id, None)
            if creation.pending:
                left.append(creation)
            else:
                self._answer(creation.token, done)
        if left:
            self._creations[shard.topic_id] = left
        for token, wanted in self._elections.pop(meta.shard_id, ()):
            self._answer(token, done if wanted in {-1, meta.leader} else _other_leads(meta, wanted))
        waiting = self._transfers.pop(meta.shard_id, [])
        others = [one for one in waiting if one[1] != meta.leader]
        if others:
            self._transfers[meta.shard_id] = others
        for token, wanted in waiting:
            if wanted == meta.leader:
                self._answer(token, done)

    def no_leader(self, meta: ShardMeta) -> None:
        """It is committed that nobody leads the shard."""
        for token, _ in self._elections.pop(meta.shard_id, ()):
            self._answer(token, nobody_leads(self._ledger.model, meta))

    def deleted(self, shard_id: int, gone: AntiphonError) -> None:
        """The shard is deleted: nobody will lead it."""
        for token, _ in (*self._elections.pop(shard_id, ()), *self._transfers.pop(shard_id, ())):
            self._answer(token, gone)

    def topic_deleted(self, topic_id: bytes, gone: AntiphonError) -> None:
        """The topic is deleted: who made it, or shards of it, is told so."""
        for creation in self._creations.pop(topic_id, ()):
            self._answer(creation.token, gone)

    def tick(self, now_ms: int) -> None:
        """Refuse transfers that did not happen in time."""
        for shard_id, token in self._transfer_ends.due(now_ms, TRANSFERS_PER_TICK):
            waiting = self._transfers.get(shard_id, [])
            late = [one for one in waiting if one[0] == token]
            if late:
                self._transfers[shard_id] = [one for one in waiting if one[0] != token]
                self._answer(
                    token,
                    UnavailableError(
                        f"leadership of shard {shard_id} did not reach node {late[0][1]}: try again"
                    ),
                )

    def _answer(self, token: int, result: CommandDone | AntiphonError) -> None:
        self._count -= 1
        self._ledger.answer(token, result)


def _other_leads(meta: ShardMeta, wanted: NodeId) -> UnavailableError:
    return UnavailableError(
        f"node {wanted} lacked entries that node {meta.leader} had, which leads shard {meta.shard_id} now: try again"
    )


def nobody_leads(model: ClusterState, meta: ShardMeta) -> UnavailableError:
    """Why the shard is Offline."""
    alive = [node for node in voting(meta) if model.is_alive(node)]
    if can_be_met(meta, alive):
        why = f"was led by nobody of {alive} who was asked to, or they lack committed entries: it is tried again"
    elif meta.fence == Fence.LIVE:
        why = f"has nobody of its live replica set {list(meta.live)} alive; others may lack committed entries"
    else:
        why = f"has no majority of its ensemble {list(meta.ensemble)} alive"
    return UnavailableError(f"shard {meta.shard_id} {why}")
