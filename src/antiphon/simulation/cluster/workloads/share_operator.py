"""Somebody who looks at a share group, as `antiphon groups describe` does: what is told was true meanwhile."""

from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError
from antiphon.model.groups import GroupKind, GroupPosition, GroupState, merged
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.workloads.share_history import ShareHistory

ANSWER_S: Final = 2.0


class ShareOperator:
    """See the module's text. `topic`: what the group reads, all of it."""

    def __init__(self, db: "AsyncClient", history: "ShareHistory", topic: str) -> None:
        self._db = db
        self._history = history
        self._topic = topic

    async def look(self) -> None:
        """Ask each node once, and judge what comes of it."""
        history = self._history
        before = history.states()
        replies = []
        for node in (await self._db.metadata()).nodes:
            try:
                asked = self._db.coordinators.group_at(node.node_id, history.group, timeout_s=ANSWER_S)
                replies.append(await asked)
            except AntiphonError:
                continue  # it is down, or not reached
        found = merged(replies)
        if found is None:
            return
        history.outcomes["shares-told"] += 1
        self._judge(found, {partition: len(rows) for partition, rows in before.items()})

    def _judge(self, found: GroupState, known: dict[int, int]) -> None:
        """`known`: by partition, how many rows of it were committed when the question was asked."""
        history = self._history
        require(
            found.kind is GroupKind.SHARE and found.member_count == len(found.members),
            "share-told",
            f"the group is told of as {found.kind} with {found.member_count} members: {found.members}",
            history.groups_shard,
        )
        told = {one.shard for one in found.positions if one.topic == self._topic}
        require(
            all(partition in told for partition in known),
            "share-told",
            f"partitions {sorted(known)} were stored, and {sorted(told)} are told of",
            history.groups_shard,
        )
        after = history.states()
        for one in found.positions:
            if one.topic == self._topic:
                since = max(0, known.get(one.shard, 0) - 1)
                self._judge_position(one, after.get(one.shard, [])[since:])

    def _judge_position(self, one: GroupPosition, rows: list[tuple[int, int]]) -> None:
        require(
            (one.offset, one.done) in rows and one.locked >= -1,
            "share-told",
            f"partition {one.shard} is told of as {one}, and start and done were {rows[-5:]} meanwhile",
            self._history.shard_ids[one.shard],
        )
        most = one.end - one.offset - one.done
        require(
            one.end < 0 or one.lag == max(0, most),
            "share-told",
            f"the lag of partition {one.shard} is {one.lag}: {one}",
            self._history.shard_ids[one.shard],
        )
