"""Handing leadership over to a chosen follower, without waiting for anybody's patience to end (Raft thesis 3.10).

The leader takes no more proposals, brings the target up to its own end, and tells it to stand for election at once
(`TimeoutNow`). The target skips the pre-vote, whose question is whether the leader is still there. The others vote as
always: what makes an election safe does not depend on why it was begun. When nothing has come of it after an election
time-out, the leader goes on as before.
"""

from collections.abc import Mapping

from antiphon.replication.follower_cursor import FollowerCursor
from antiphon.replication.messages import NodeId


class Transfer:
    """One attempt. `ticks_left` until it is given up; `told`: the target has heard `TimeoutNow` in this beat."""

    __slots__ = ("ticks_left", "to", "told")

    def __init__(self, to: NodeId, ticks: int) -> None:
        self.to = to
        self.ticks_left = ticks
        self.told = False

    def is_due(self, cursors: Mapping[NodeId, FollowerCursor], log_end: int) -> bool:
        """Has the target the whole log, durably, and was it not told yet?"""
        cursor = cursors.get(self.to)
        return not self.told and cursor is not None and cursor.ack_offset >= log_end


def best_successor(cursors: Mapping[NodeId, FollowerCursor], among: tuple[NodeId, ...]) -> NodeId | None:
    """Of `among`, the connected follower that has most of the log; the first of them that are equal. None: nobody."""
    best: FollowerCursor | None = None
    for node in among:
        cursor = cursors.get(node)
        if cursor is not None and cursor.connected and (best is None or cursor.ack_offset > best.ack_offset):
            best = cursor
    return None if best is None else best.node
