"""What a node tells operators of groups: those that it coordinates, where they are, and what it holds of share groups.

Where groups are stands in rows of `__groups`. Who is in them is known to the listener that hosts them (`GroupHost`), where
this node has one.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from antiphon.coordination.share_partition import SharePartition
from antiphon.coordination.share_terms import ShareBounds, ShareRow
from antiphon.errors import AntiphonError, NotLeaderError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.model.groups import (
    HELD_MAX,
    GetGroups,
    GroupKind,
    GroupPosition,
    GroupsReply,
    GroupState,
    HeldShare,
)
from antiphon.model.metadata import ABSENT_NODE
from antiphon.model.requests import GetStatus, StatusReply
from antiphon.transactions.group_offsets import GroupOffsets
from antiphon.transactions.internal_table import InternalTable
from antiphon.transactions.share_rows import place_of_key, state_of
from antiphon.transactions.share_states import ShareStateKeeper

ASK_S: Final = 2.0  # for the ends of shards that other nodes lead
EMPTY: Final = "Empty"
_WIDE: Final = ShareBounds(delivery_count_limit=2**15)  # nothing is archived by being looked at
Places = list[tuple[str, int]]


class GroupHost(Protocol):
    """Who knows the members of the groups that this node coordinates."""

    async def known(self) -> dict[str, GroupState]:
        """All groups with members here, and those without that are stored, without their members."""
        ...

    async def one(self, group: str) -> GroupState | None:
        """One of them, with its members."""
        ...

    def held(self, group: str) -> dict[tuple[bytes, int], int]:
        """By topic id and shard: records that members work on, of share-partitions that this node holds."""
        ...


class GroupTeller:
    """See the module's text. `host` is set by the listener that hosts groups."""

    def __init__(
        self, gateway: Gateway, groups: InternalTable, offsets: GroupOffsets, shares: ShareStateKeeper
    ) -> None:
        self._gateway = gateway
        self._groups = groups
        self._offsets = offsets
        self._shares = shares
        self.host: GroupHost | None = None

    async def answer(self, asked: GetGroups) -> GroupsReply:
        """The answer. Raises what the table's calls raise."""
        if not asked.group:
            return await self._listed(asked)
        held = self._held(asked.group)
        try:
            shard_id, _ = self._groups.home(asked.group)
        except (NotLeaderError, UnknownTopicError):
            return GroupsReply(held=held)  # another node coordinates it
        found = await self._one(asked, shard_id)
        return GroupsReply(() if found is None else (found,), held)

    # -- all ---------------------------------------------------------------------------------------------------------

    async def _listed(self, asked: GetGroups) -> GroupsReply:
        found = {} if self.host is None else await self.host.known()
        for shard in self._groups.led_shards():
            for name in await self._offsets.groups_of(shard.shard_id):
                found.setdefault(name, GroupState(name, GroupKind.CLASSIC, EMPTY, 0))
        rows = [state for name, state in sorted(found.items()) if name > asked.after]
        return GroupsReply(tuple(rows[: asked.limit]), more=len(rows) > asked.limit)

    # -- one ---------------------------------------------------------------------------------------------------------

    def _held(self, group: str) -> tuple[HeldShare, ...]:
        found = []
        for (topic_id, shard), locked in {} if self.host is None else self.host.held(group).items():
            try:
                found.append(HeldShare(self._gateway.topic_by_id(topic_id).name, shard, locked))
            except UnknownTopicError:
                continue  # it was deleted
            if len(found) == HELD_MAX:
                break
        return tuple(found)

    async def _one(self, asked: GetGroups, shard_id: int) -> GroupState | None:
        found = None if self.host is None else await self.host.one(asked.group)
        is_share = found is not None and found.kind is GroupKind.SHARE
        if is_share:
            positions = await self._start_offsets(shard_id, asked.group)
        else:
            positions = await self._committed(asked.group)
        if found is None and not positions:
            return None
        some = await self._with_ends(positions[asked.start : asked.start + asked.limit])
        state = found or GroupState(asked.group, GroupKind.CLASSIC, EMPTY, 0)
        return GroupState(
            state.group,
            state.kind,
            state.state,
            state.member_count,
            state.epoch,
            state.members,
            tuple(some),
            len(positions),
        )

    async def _committed(self, group: str) -> list[GroupPosition]:
        return [
            GroupPosition(
                at.topic,
                at.partition,
                at.committed.offset,
                changed_ms=at.committed.commit_ms,
                note=at.committed.metadata,
            )
            for at in await self._offsets.fetch_all(group)
        ]

    async def _start_offsets(self, shard_id: int, group: str) -> list[GroupPosition]:
        found = []
        for row in await self._shares.rows(shard_id, group):
            try:
                topic_id, partition = place_of_key(row.key)
                topic, state = self._gateway.topic_by_id(topic_id).name, state_of(row.value or b"")
                start, done = reached(state)
            except (ValueError, UnknownTopicError):
                continue  # whoever leads the partition tells of the row; or the topic was deleted
            if state.start >= 0:
                found.append(GroupPosition(topic, partition, start, done))
        return sorted(found, key=lambda one: (one.topic, one.shard))

    async def _with_ends(self, positions: Sequence[GroupPosition]) -> list[GroupPosition]:
        """The same with where the shards end now; each of their leaders is asked once."""
        shards: dict[tuple[str, int], tuple[int, int]] = {}  # with the leader
        for name in {one.topic for one in positions}:
            try:
                topic = self._gateway.topic(name)
            except UnknownTopicError:
                continue
            shards |= {(name, shard.index): (shard.leader, shard.shard_id) for shard in topic.shards}
        by_leader: dict[int, list[int]] = {}
        for one in positions:
            leader, shard_id = shards.get((one.topic, one.shard), (ABSENT_NODE, 0))
            if leader != ABSENT_NODE:
                by_leader.setdefault(leader, []).append(shard_id)
        ends: dict[int, int] = {}
        for part in await asyncio.gather(*(self._ends(leader, some) for leader, some in by_leader.items())):
            ends |= part
        told = []
        for one in positions:
            _, shard_id = shards.get((one.topic, one.shard), (ABSENT_NODE, 0))
            told.append(
                GroupPosition(
                    one.topic,
                    one.shard,
                    one.offset,
                    one.done,
                    ends.get(shard_id, -1),
                    one.locked,
                    one.changed_ms,
                    one.note,
                )
            )
        return told

    async def _ends(self, leader: int, shards: list[int]) -> dict[int, int]:
        asked = GetStatus(tuple(shards))
        try:
            if leader == self._gateway.node_id:
                reply: StatusReply | None = self._gateway.status(asked.shards)
            else:
                reply = await self._gateway.questions.ask(leader, asked, ASK_S)
        except AntiphonError:
            return {}
        found = reply.replicas if isinstance(reply, StatusReply) else ()
        return {one.shard_id: one.high_watermark for one in found}


def reached(row: ShareRow) -> tuple[int, int]:
    """The start offset that a share-partition's row says, and how many records after it are done; raises ValueError."""
    state = SharePartition.restored(_WIDE, row.start, row.spans)
    return state.start, state.done()
