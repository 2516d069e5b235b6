"""A shard of which most replicas are lost for good goes on from one that is left, by an operator's command.

No rule of the protocol can bring back what only the lost replicas had, and none may choose to do without it. So an operator
does, and one record of `__cluster` says all that follows (`ShardMeta.recovery`):

- The replica that the operator named is the only member, which is the majority of one. Others are added as always: the
  record has the goal to do so.
- The shard's term is the next *mark*, a term beyond all that can have begun (`recovery.next_mark`). Whoever has entries and
  promised less has the old history. It is let into nothing: its node removes it once the shard is led again.
- Until then such replicas are closed and kept, so that the operator may name another one if the first is lost as well.

Where a coordinator elects, the election of the only member is an election like any other. Where replicas vote, that replica
goes by the members in its log, so it is told to write down that it is the only one (`GoOnAlone`), until it reports that it
leads. A new coordinator finds what is not done in the records.
"""

import msgspec

from antiphon.coordination.actions import ShardRecovered
from antiphon.coordination.balance import takes_replicas, with_replicas
from antiphon.coordination.cluster_records import RECOVERED_FORMAT, ShardRecord
from antiphon.coordination.elections import Elections
from antiphon.coordination.fences import Fence, can_be_met, voting
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.profiles import Replication
from antiphon.coordination.reconfiguration import Reconfigurations
from antiphon.coordination.recovery import next_mark
from antiphon.coordination.self_led import is_self_led
from antiphon.coordination.state import has_leader, refuse_earlier
from antiphon.coordination.timers import Timers
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.model.metadata import ShardMeta, ShardRecovery
from antiphon.model.placement import RecoverShard
from antiphon.replication.messages import GoOnAlone

REPEAT_MS = 400
REPEAT_MS_MAX = 5_000
REPEATS_PER_TICK = 1_000


class ShardRecoveries:
    """See the module's text."""

    def __init__(self, ledger: Ledger, elections: Elections, changes: Reconfigurations) -> None:
        self._ledger = ledger
        self._model = ledger.model
        self._elections = elections
        self._changes = changes
        self._told: dict[int, int] = {}  # shard -> number of the recovery that was announced
        self._timers: Timers[tuple[int, int, int]] = Timers()  # (shard, number of the recovery, repeats)

    # -- the command -------------------------------------------------------------------------------------------------

    def recover(self, request: RecoverShard) -> bool:
        """Decide to go on from one replica; False: that was decided before, and is done.

        Raises InvalidRequestError, UnavailableError, UnknownShardError, and changes nothing then.
        """
        record = self._model.shard(request.shard_id)
        meta = record.meta
        known = meta.recovery
        if known is not None and (known.number, known.node) == (request.number, request.node):
            return not has_leader(meta)
        options = self._elections.options_of(record)
        self._check(record, options, request)
        self._go_on_from(record, request)
        return True

    def _check(self, record: ShardRecord, options: Replication, request: RecoverShard) -> None:
        meta, node = record.meta, request.node
        name = f"shard {meta.shard_id}"
        if options.is_multi:
            raise InvalidRequestError(
                f"every replica of {name} takes writes (writers=multi), so any one that is left serves it: there is nothing "
                "to recover. `antiphon shard move NAME SHARD --from NODE --to NODE` puts replicas elsewhere"
            )
        if options.is_live and options.min_live > 1:
            raise InvalidRequestError(
                f"min.live={options.min_live} lets nobody write with the one replica that would be left of {name}: set "
                "min.live=1 (`antiphon topic alter NAME --config min.live=1`), and back when it has its replicas again"
            )
        refuse_earlier(
            self._model,
            RECOVERED_FORMAT,
            "are of a version that knows no recovery of a shard: upgrade or remove them first",
        )
        if meta.split is not None:
            raise InvalidRequestError(
                f"{name} is being split off another one, and holds nothing of its own yet"
            )
        if request.number != (1 if meta.recovery is None else meta.recovery.number + 1):
            raise InvalidRequestError(f"{name} was recovered meanwhile: look at it again")
        self._check_lost(record, options, node)
        if node not in _candidates(meta):
            raise InvalidRequestError(
                f"node {node} has no replica of {name}: nodes {list(_candidates(meta))} have", node=node
            )
        if not self._model.is_alive(node):
            raise UnavailableError(
                f"node {node}, from which {name} is to go on, is not alive: start it", node=node
            )
        if node in record.untrusted:
            raise InvalidRequestError(
                f"node {node} is back with an empty disk, and has nothing of {name}: name another one",
                node=node,
            )

    def _check_lost(self, record: ShardRecord, options: Replication, node: int) -> None:
        """Refuse while the shard's own rules can still find a leader: that loses nothing.

        Where replicas vote, the record may still name a leader that has given up since for want of a majority. Whatever was
        committed until its last report it has, so the shard may go on from no other one.
        """
        meta = record.meta
        there = [one for one in voting(meta) if self._model.is_alive(one) and one not in record.untrusted]
        is_enough = can_be_met(meta, there) and meta.shard_id not in self._elections.hopeless
        leads = has_leader(meta) and self._model.is_alive(meta.leader)
        if leads and (is_enough or not is_self_led(options)):
            raise InvalidRequestError(
                f"shard {meta.shard_id} is led by node {meta.leader}: nothing is to be recovered",
                leader=meta.leader,
            )
        if is_enough:
            raise InvalidRequestError(
                f"nodes {there} of shard {meta.shard_id} are alive, and enough to elect a leader who has all: wait, or "
                f"ask for it with `antiphon shard elect NAME SHARD`; members: {list(voting(meta))}",
                alive=there,
            )
        if leads and node != meta.leader:
            raise InvalidRequestError(
                f"node {meta.leader} led shard {meta.shard_id} last, and is alive: go on from that one",
                leader=meta.leader,
            )

    def _go_on_from(self, record: ShardRecord, request: RecoverShard) -> None:
        meta, node, shard_id = record.meta, request.node, request.shard_id
        mark = next_mark((meta.term, request.term))
        members = _candidates(meta)
        self._elections.forget(shard_id)
        self._changes.deleted(shard_id)  # whatever was to become of its members
        is_live = meta.fence != Fence.MAJORITY
        changed = msgspec.structs.replace(
            meta,
            ensemble=(node,),
            outgoing=(),
            learners=(),
            goal=(),
            members_version=meta.members_version + 1,
            term=mark,
            live=(node,) if is_live else (),
            live_version=meta.live_version + is_live,
            recovery=ShardRecovery(mark, node, members, request.at, request.number),
        )
        self._ledger.put_shard(msgspec.structs.replace(record, meta=changed, untrusted=()))
        self._elections.begin(shard_id, "recovered", wanted=node, above=mark, ordered=True)
        self._grow_back(shard_id, node, members)

    def _grow_back(self, shard_id: int, node: int, before: tuple[int, ...]) -> None:
        """As many replicas as the topic is to have, or as there are nodes for: where it was, and elsewhere."""
        record = self._model.shards[shard_id]
        topic = self._model.topics[self._model.names[record.topic_id]]
        there = {*takes_replicas(self._model), node}
        count = min(topic.replicas, len(there))
        kept = [node, *(one for one in before if one in there and one != node)][:count]
        aimed = msgspec.structs.replace(record.meta, goal=tuple(kept))
        self._ledger.put_shard(msgspec.structs.replace(record, meta=aimed))
        goal = with_replicas(self._model, [shard_id], count).get(shard_id, tuple(kept))
        self._changes.aim(shard_id, (node, *(one for one in goal if one != node)))  # who leads stays

    # -- what is committed is announced, and done ---------------------------------------------------------------------

    def resume(self, now_ms: int) -> None:
        """A new coordinator: go on with what is not done."""
        for record in list(self._model.shards.values()):
            self.committed(record, now_ms)

    def committed(self, record: ShardRecord, now_ms: int) -> None:
        """A shard's after-image is committed."""
        meta, known = record.meta, record.meta.recovery
        if known is None or known.done or self._told.get(meta.shard_id) == known.number:
            return
        self._told[meta.shard_id] = known.number
        self._ledger.act(ShardRecovered(meta.shard_id, known.term, known.node, known.at))
        self._send_alone(meta.shard_id, known.number, 0, now_ms)

    def tick(self, now_ms: int) -> None:
        """Repeat what was not answered."""
        for shard_id, number, repeats in self._timers.due(now_ms, REPEATS_PER_TICK):
            self._send_alone(shard_id, number, repeats, now_ms)

    def deleted(self, shard_id: int) -> None:
        """The shard is about to be deleted."""
        self._told.pop(shard_id, None)

    def _send_alone(self, shard_id: int, number: int, repeats: int, now_ms: int) -> None:
        """Where replicas vote, tell the one that is left to go on alone, until it reports that it does."""
        record = self._model.shards.get(shard_id)
        known = None if record is None else record.meta.recovery
        if record is None or known is None or known.done or known.number != number:
            self._told.pop(shard_id, None)
            return
        if not is_self_led(self._elections.options_of(record)):
            return  # its election is under way
        if self._model.is_alive(known.node):
            self._ledger.send(known.node, GoOnAlone(shard_id, known.term))
        wait_ms = min(REPEAT_MS << min(repeats, 10), REPEAT_MS_MAX)
        self._timers.add(now_ms + wait_ms, (shard_id, number, repeats + 1))


def _candidates(meta: ShardMeta) -> tuple[int, ...]:
    """Who may have something to go on from: the voters; after a recovery that is not done, all that were there before."""
    known = meta.recovery
    before = () if known is None or known.done else known.members
    return tuple(dict.fromkeys((*voting(meta), *before)))


def is_of_the_past(meta: ShardMeta, node: int, term: int) -> bool:
    """Has a replica with entries, on this node and in this term, the history of before the shard's last recovery?

    Whoever is placed anew begins empty, and promises a term beyond the mark before it is sent anything. The replica from
    which the shard went on has the new history whatever it has promised.
    """
    known = meta.recovery
    return known is not None and node != known.node and term < known.term


def is_kept(meta: ShardMeta, node: int) -> bool:
    """May the shard still have to go on from this node's replica, which is no member any more?"""
    known = meta.recovery
    return known is not None and not known.done and node in known.members
