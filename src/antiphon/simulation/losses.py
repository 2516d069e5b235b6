"""What was acknowledged and is lost: how much, and whether it lies within the window that the commit rule names (S4.28).

Under `local` and small `at_least(k)` a leader acknowledges what only it, or few, have. When it is deposed before that
reached a majority, the entries are lost. That is the documented price; here it is measured, and it is checked that nothing
else was lost: only entries of a leader that was deposed, never one that was settled, and each told of by that replica.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.simulation.scheduler import MILLISECOND
from antiphon.simulation.violation import require

Identity = tuple[int, int]  # client, sequence


class Acknowledged(NamedTuple):
    """A request that a leader called committed."""

    base_offset: int
    term: int
    node: int
    time_ns: int


@dataclass(slots=True)
class Losses:
    """All losses of one shard."""

    acknowledged: dict[Identity, Acknowledged] = field(default_factory=dict)
    tails: list[tuple[int, int, int]] = field(default_factory=list)  # (node, from, to) that a replica told of
    silent: dict[int, None] = field(default_factory=dict)  # nodes that lost their memory, and cannot tell
    unclean_entries: int = 0

    def check(
        self,
        shard: int,
        committed: dict[Identity, tuple[int, int]],
        began_ns: dict[int, int],
    ) -> "LossReport":
        """What is lost for good. Raises ViolationError for a loss outside the window.

        Args:
            shard: for messages.
            committed: where each request stands that is in the committed log.
            began_ns: when the first leader of each term began.
        """
        lost = [
            (identity, said)
            for identity, said in self.acknowledged.items()
            if committed.get(identity, (-1, -1))[0] != said.base_offset
        ]
        longest_ns = 0
        for (client, sequence), said in lost:
            later = [time_ns for term, time_ns in began_ns.items() if term > said.term]
            what = (
                f"request {sequence} of client {client}, acknowledged at {said.base_offset} in term {said.term} "
                f"by node {said.node}"
            )
            require(
                bool(later), "loss-window", shard, f"{what}, is lost, though that leader was never deposed"
            )
            told = any(
                node == said.node and start <= said.base_offset < end for node, start, end in self.tails
            )
            require(told or said.node in self.silent, "loss-told", shard, f"{what}, is lost without a word")
            longest_ns = max(longest_ns, min(later) - said.time_ns)
        return LossReport(len(self.acknowledged), len(lost), longest_ns // MILLISECOND, self.unclean_entries)


class LossReport(NamedTuple):
    """Acknowledged requests, how many of them are lost, the longest time from acknowledgement to the next leader."""

    acknowledged: int
    lost: int
    longest_ms: int
    unclean_entries: int


NO_LOSSES = LossReport(0, 0, 0, 0)
