"""Getting one's own entries back after a part of the log was lost, so that no LSN is ever used twice.

An origin numbers its entries by what its log holds. A replica whose log was found damaged may have numbered, and others may
hold, entries that it no longer knows of. The rule: it writes nothing until **every** other member has answered `AskOrigin`
and it holds, durably, all that any of them has of its origin. Whoever answers first makes durable what it has, and drops
what is still on its way from the asker's earlier life; so whatever nobody names in the answers can never turn up later.

One member that does not answer is enough to wait, for it may be the one that has the newest entry. Where a whole disk was
lost there is no need to wait: the coordinator gives the new disk a new origin id, and the old one's entries come back as
anybody's do.
"""

from collections.abc import Iterable

from antiphon.replication.messages import NodeId
from antiphon.replication.multi_messages import AskOrigin, OriginAnswer
from antiphon.replication.multi_writer_actions import MultiAction, Tell
from antiphon.replication.multi_writer_relay import TERM
from antiphon.replication.origin_log import OriginLog
from antiphon.replication.vclock import Vclock, covers, join


class Regain:
    """Whom to ask, and what has to be here before this replica writes again."""

    def __init__(self, shard: int, log: OriginLog, nonce: int) -> None:
        self._shard = shard
        self._log = log
        self._nonce = nonce
        self._silent: dict[NodeId, None] = {}
        self._needed: Vclock = ()
        self._answered: dict[NodeId, None] = {}
        self._ticks = 0

    @property
    def waits_for(self) -> tuple[NodeId, ...]:
        """Members that have not answered."""
        return tuple(self._silent)

    @property
    def done(self) -> bool:
        """Has everybody answered, and is what they have durable here?"""
        return not self._silent and covers(self._log.durable_clock, self._needed)

    def set_peers(self, peers: Iterable[NodeId]) -> None:
        """These are the other members now."""
        self._silent = {node: None for node in peers if node not in self._answered}

    def ask(self, node: NodeId, out: list[MultiAction]) -> None:
        """A connection is there: ask, if the member has not answered."""
        if node in self._silent:
            out.append(Tell(node, AskOrigin(self._shard, TERM, self._nonce)))

    def on_answer(self, sender: NodeId, message: OriginAnswer) -> None:
        """A member said what it has."""
        if message.nonce == self._nonce and sender in self._silent:
            del self._silent[sender]
            self._answered[sender] = None
            self._needed = join(self._needed, message.vclock)

    def tick(self, resend_ticks: int, out: list[MultiAction]) -> None:
        """Ask again now and then."""
        self._ticks += 1
        if self._ticks % resend_ticks == 0:
            for node in tuple(self._silent):
                self.ask(node, out)
