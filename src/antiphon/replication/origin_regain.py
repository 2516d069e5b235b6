"""Getting one's own entries back after a part of the log was lost, so that no LSN is ever used twice.

An origin numbers its entries by what its log holds. A replica whose log was found damaged may have numbered, and others may
hold, entries that it no longer knows of. The rule: it writes nothing until **every** other member has answered `AskOrigin`
and it holds, durably, all that any of them has of its origin. Whoever answers first makes durable what it has, and ends all
its subscriptions for new ones: so what is still on its way from any earlier self of anybody is dropped, and what nobody
names in the answers can never turn up later.

One member that does not answer is enough to wait, for it may be the one that has the newest entry. A member that named an
entry and lost it before it passed it on makes everybody be asked again. What no member has may still stand whole behind the
damage of the replica's own log: it is appended again then, under the numbers that it has, before anything new. Where a
whole disk was lost there is no need to wait: the coordinator gives the new disk a new origin id, and the old one's entries
come back as anybody's do.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from antiphon.replication.messages import NodeId
from antiphon.replication.multi_messages import AskOrigin, OriginAnswer
from antiphon.replication.multi_writer_actions import MultiAction, Send
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.multi_writer_relay import TERM
from antiphon.replication.origin_history import OriginEntry
from antiphon.replication.origin_log import OriginLog
from antiphon.replication.vclock import Vclock, component, join

ROUND_BITS: Final = 16
ROUND_STALLS: Final = 10


class Regain:
    """Whom to ask, and what has to be here before this replica writes again. `life`: of the replica."""

    def __init__(self, shard: int, log: OriginLog, life: int) -> None:
        self._shard = shard
        self._log = log
        self._nonce = life << ROUND_BITS
        self._peers: tuple[NodeId, ...] = ()
        self._silent: dict[NodeId, None] = {}
        self._needed: Vclock = ()
        self._ticks = 0

    @property
    def waits_for(self) -> tuple[NodeId, ...]:
        """Members that have not answered."""
        return tuple(self._silent)

    def is_done(self, origin: int) -> bool:
        """Has everybody answered, and is what they have of `origin`, this replica's own, durable here?"""
        return not self._silent and self._log.durable_lsn(origin) >= component(self._needed, origin)

    def set_peers(self, peers: Iterable[NodeId]) -> None:
        """These are the other members now: a round begins."""
        self._peers = tuple(peers)
        self._begin_round()

    def _begin_round(self) -> None:
        self._nonce += 1
        self._silent = dict.fromkeys(self._peers)
        self._needed = ()
        self._ticks = 0

    def ask(self, node: NodeId, out: list[MultiAction]) -> None:
        """A connection is there: ask, if the member has not answered."""
        if node in self._silent:
            out.append(Send(node, AskOrigin(self._shard, TERM, self._nonce)))

    def ask_all(self, out: list[MultiAction]) -> None:
        """Ask whoever has not answered."""
        for node in tuple(self._silent):
            self.ask(node, out)

    def on_answer(self, sender: NodeId, message: OriginAnswer) -> None:
        """A member said what it has."""
        if message.nonce == self._nonce and sender in self._silent:
            del self._silent[sender]
            self._needed = join(self._needed, message.vclock)

    def tick(self, config: MultiWriterConfig, out: list[MultiAction]) -> None:
        """Ask again now and then; and all anew when what they said they have does not come."""
        self._ticks += 1
        if not self._silent and self._ticks >= ROUND_STALLS * config.stall_ticks:
            self._begin_round()
            self.ask_all(out)
        elif self._ticks % config.resend_ticks == 0:
            self.ask_all(out)


def take_kept(kept: deque[OriginEntry], log: OriginLog, origin: int, max_bytes: int) -> list[OriginEntry]:
    """Entries of `origin` that follow what the log has, taken from those that were `kept`; a part of bounded size.

    The others before them go too. Nothing follows a gap: what stood in it is nowhere any more.
    """
    found: list[OriginEntry] = []
    have, size_bytes = log.history.lsns[origin], 0
    while kept and size_bytes < max_bytes:
        entry = kept.popleft()
        if (entry.origin, entry.lsn) == (origin, have + 1):
            found.append(entry)
            have, size_bytes = entry.lsn, size_bytes + entry.size_bytes
    return found
