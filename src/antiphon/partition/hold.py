"""Holds one shard's log for the moment of a backup's cut, on the shard's leader.

While a shard is held, what clients write waits in the line of appends (`append_queue`), and so do the ends of transactions
and of sessions. The answer is where the log ends now. A hold ends when whoever asked for it lets go or asks for its
confirmation, and when its lease is over. The lease is the leader's own: nobody has to come back.

A confirmed hold proves that the log ended there at each moment between the answer to `begin` and the arrival of `confirm`,
and that all of it is committed: the hold was not broken, and a majority has confirmed this leader, with all of its log up to
the end, after `confirm` came. So no newer leader can have committed anything before. No clocks are compared. Nobody waits
for a commit while writes wait: what was under way at the end is waited for by `confirm`, which has let go by then.
"""

from functools import partial
from typing import Final

from antiphon.errors import NotHeldError, OverloadedError, WrongKindError
from antiphon.model.backup import NOBODY, HoldConfirmed, ShardHeld
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.state import PartitionState

CONFIRM_S: Final = 5.0


class ShardHold:
    """See the module's text; of one replica. The node calls `release` when a lease is over.

    Attributes:
        holder: under which id the log is held; empty: it is not.
        since_s: since when, by the event loop's clock.
    """

    def __init__(self, state: PartitionState, clients: PartitionClients) -> None:
        self._state = state
        self._clients = clients
        self.holder = b""
        self.since_s = 0.0
        self._until_s = 0.0
        self._term = 0
        self._end = -1  # that was told

    def begin(self, hold_id: bytes, lease_s: float, done: Done) -> None:
        """Hold the log; `done` gets `ShardHeld`, or NotHeldError where a write takes longer than the lease to be judged.

        Without a lease nothing is held, and the end is that of what is committed.

        Raises NotLeaderError, NotReadyError, OverloadedError while another backup holds it, and WrongKindError where every
        replica writes.
        """
        state, now_s = self._state, self._state.services.now_s()
        state.check_serving()
        if state.has_many_writers:
            raise WrongKindError(
                f"every replica writes shard {state.shard_id}: no leader can hold it for a backup"
            )
        if lease_s <= 0:
            done(ShardHeld(state.high_watermark, state.term, state.log.log_start, state.deleted_before))
            return
        if self.holder and self._is_over():
            self.release(self.holder)
        if self.holder and self.holder != hold_id:
            raise OverloadedError(
                f"another backup holds shard {state.shard_id}; retry when its lease is over"
            )
        if not self.holder:
            self.holder, self._term, self._end = hold_id, state.term, -1
            self.since_s, self._until_s = now_s, now_s + lease_s
            self._clients.queue.holds += 1
        self._answer(hold_id, done)

    def _answer(self, hold_id: bytes, done: Done) -> None:
        """Tell the end, as soon as no write is judged in pieces: that one will be appended."""
        state = self._state
        if self.holder != hold_id or self._is_over():
            done(self._not_held(hold_id))
        elif self._clients.queue.holds > 1:
            state.services.turn.pieces.add(self, partial(self._answer, hold_id, done))
        else:
            self._end = state.log.log_end
            done(ShardHeld(self._end, self._term, state.log.log_start, state.deleted_before))

    def confirm(self, hold_id: bytes, end: int, term: int, done: Done) -> None:
        """Let go; `done` gets `HoldConfirmed` when all up to `end` is committed, or what took its place.

        Raises NotHeldError, NotLeaderError, NotReadyError.
        """
        state = self._state
        state.check_serving()
        held_us = 0
        if hold_id == NOBODY:
            is_whole = state.high_watermark == end
        else:
            is_whole = self.holder == hold_id and not self._is_over()
            is_whole = is_whole and self._end == end == state.log.log_end
            held_us = int((state.services.now_s() - self.since_s) * 1_000_000)
            self.release(hold_id)
        if not is_whole or state.term != term:
            raise self._not_held(hold_id)
        self._clients.when_confirmed(end, CONFIRM_S, lambda: done(HoldConfirmed(held_us)), done)

    def release(self, hold_id: bytes) -> None:
        """Go on with who waits, if it is held under this id."""
        if self.holder and self.holder == hold_id:
            self.holder, self._end = b"", -1
            self._clients.let_go()

    def _is_over(self) -> bool:
        state = self._state
        return state.services.now_s() >= self._until_s or state.term != self._term

    def _not_held(self, hold_id: bytes) -> NotHeldError:
        state = self._state
        return NotHeldError(
            f"shard {state.shard_id} is not held under {hold_id.hex()[:8]} in term {state.term}, or its log has grown: the "
            "lease was over, or the leader changed; take the cut again"
        )
