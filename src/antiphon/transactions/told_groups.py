"""What a node tells operators of groups: those that it coordinates, where they are, and what it holds of share groups.

Where groups are stands in rows of `__groups`. Who is in them is known to the listener that hosts them (`GroupHost`), where
this node has one.
"""

import asyncio
from typing import Final, Protocol

import msgspec

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
from antiphon.model.requests import FIND_KEYS_MAX, GetStatus, StatusReply
from antiphon.transactions.group_offsets import GroupOffsets
from antiphon.transactions.internal_table import InternalTable
from antiphon.transactions.share_rows import place_of_key, state_of
from antiphon.transactions.share_states import ShareStateKeeper

ASK_S: Final = 2.0  # for the ends of shards that other nodes lead
EMPTY: Final = "Empty"
_WIDE: Final = ShareBounds(delivery_count_limit=2**15)  # nothing is archived by being looked at
LAGS_MAX: Final = 500  # groups whose lag is looked at
PLACES_MAX: Final = 20_000  # positions of these
Place = tuple[str, int]
"""Topic and index of a shard."""

Ends = dict[Place, int]


class GroupHost(Protocol):
    """Who knows the members of the groups that this node coordinates."""

    async def known(self) -> dict[str, GroupState]:
        """All groups with members here, and those without that are stored, without their members."""

    async def one(self, group: str) -> GroupState | None:
        """One of them, with its members."""

    def held(self, group: str) -> dict[tuple[bytes, int], int]:
        """By topic id and shard: records that members work on, of share-partitions that this node holds."""


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

    async def lags(self) -> dict[str, int]:
        """Records that groups coordinated here have before them, by group, where the ends of its shards are known now.

        Of at most `LAGS_MAX` groups, and as many of them as have `PLACES_MAX` positions together. Raises what the table's
        calls raise.
        """
        found: dict[str, list[GroupPosition]] = {}
        left = PLACES_MAX
        for state in (await self._listed(GetGroups(limit=LAGS_MAX))).groups:
            shard_id, _ = self._groups.home(state.group)
            is_share = state.kind is GroupKind.SHARE
            positions = await self._positions(state.group, shard_id, is_share=is_share)
            left -= len(positions)
            if left < 0:
                break
            found[state.group] = positions
            await asyncio.sleep(0)  # others are served between two groups
        ends = await self._ends_of({(one.topic, one.shard) for some in found.values() for one in some})
        lags = {group: [_at(one, ends).lag for one in positions] for group, positions in found.items()}
        known = {group: [lag for lag in some if lag is not None] for group, some in lags.items()}
        return {group: sum(some) for group, some in known.items() if some and len(some) == len(lags[group])}

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
        positions = await self._positions(asked.group, shard_id, is_share=is_share)
        if found is None and not positions:
            return None
        some = positions[asked.start : asked.start + asked.limit]
        ends = await self._ends_of({(one.topic, one.shard) for one in some})
        state = found or GroupState(asked.group, GroupKind.CLASSIC, EMPTY, 0)
        told = tuple(_at(one, ends) for one in some)
        return msgspec.structs.replace(state, positions=told, position_count=len(positions))

    async def _positions(self, group: str, shard_id: int, *, is_share: bool) -> list[GroupPosition]:
        """Where a group is, by topic and shard, without the ends of those."""
        return await (self._start_offsets(shard_id, group) if is_share else self._committed(group))

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

    async def _ends_of(self, places: set[Place]) -> Ends:
        """Where these shards end now, as far as it is known; each of their leaders is asked once for many."""
        led: dict[int, dict[int, Place]] = {}
        for name in {topic for topic, _ in places}:
            try:
                topic = self._gateway.topic(name)
            except UnknownTopicError:
                continue
            for shard in topic.shards:
                if shard.leader != ABSENT_NODE and (name, shard.index) in places:
                    led.setdefault(shard.leader, {})[shard.shard_id] = (name, shard.index)
        asked = [
            self._ends(leader, dict(list(shards.items())[at : at + FIND_KEYS_MAX]))
            for leader, shards in led.items()
            for at in range(0, len(shards), FIND_KEYS_MAX)
        ]
        found: Ends = {}
        for part in await asyncio.gather(*asked):
            found |= part
        return found

    async def _ends(self, leader: int, shards: dict[int, Place]) -> Ends:
        asked = GetStatus(tuple(shards))
        try:
            if leader == self._gateway.node_id:
                reply: StatusReply | None = self._gateway.status(asked.shards)
            else:
                reply = await self._gateway.questions.ask(leader, asked, ASK_S)
        except AntiphonError:
            return {}
        found = reply.replicas if isinstance(reply, StatusReply) else ()
        return {shards[one.shard_id]: one.high_watermark for one in found if one.shard_id in shards}


def _at(position: GroupPosition, ends: Ends) -> GroupPosition:
    return msgspec.structs.replace(position, end=ends.get((position.topic, position.shard), -1))


def reached(row: ShareRow) -> tuple[int, int]:
    """The start offset that a share-partition's row says, and how many records after it are done; raises ValueError."""
    state = SharePartition.restored(_WIDE, row.start, row.spans)
    return state.start, state.done()
