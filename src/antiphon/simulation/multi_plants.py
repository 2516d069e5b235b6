"""Bugs to plant in the multi-writer world; each has to be caught within few seeds.

Written as somebody would write them who had not thought of the hazard.
"""

from collections.abc import Sequence
from typing import Any, Final

from antiphon.replication.actions import Commit
from antiphon.replication.multi_messages import Relay, RelayAck
from antiphon.replication.multi_writer import Batch, MultiWriterReplica
from antiphon.replication.multi_writer_actions import AppendEntries, FeedRelay, MultiAction, Tell
from antiphon.replication.multi_writer_intake import IntakeSide, Subscription
from antiphon.replication.multi_writer_relay import TERM, RelayCursor, RelaySide
from antiphon.replication.origin_history import History, Mark, OriginEntry
from antiphon.replication.origin_index import OriginIndex
from antiphon.replication.origin_log import OriginLog
from antiphon.replication.origin_regain import Regain
from antiphon.simulation import multi_node
from antiphon.simulation.plants import Plant
from antiphon.table import merge
from antiphon.table.merge import Cell

PROFILE: Final = "multi"
Patch = tuple[Any, str, Any]

_propose = MultiWriterReplica.propose
_recovered = multi_node.recovered


def _propose_and_commit(self: MultiWriterReplica, batches: Sequence[Batch]) -> list[MultiAction]:
    return [*_propose(self, batches), Commit(self.log_end)]


def _pump_what_is_staged(self: RelaySide, cursor: RelayCursor, out: list[MultiAction]) -> None:
    at, end = cursor.history.offset, self._log.log_end
    if cursor.session and cursor.connected and not cursor.feeding and at < end:
        cursor.feeding = True
        out.append(FeedRelay(cursor.node, at, end, self._config.feed_bytes_max))


def _take_everything(_self: IntakeSide, message: Relay) -> tuple[list[OriginEntry], bool]:
    return list(message.entries), False


def _take_beyond_gaps(self: IntakeSide, message: Relay) -> tuple[list[OriginEntry], bool]:
    lsns = list(self._log.history.lsns)
    taken = []
    for entry in message.entries:
        if entry.lsn > lsns[entry.origin]:
            lsns[entry.origin] = entry.lsn
            taken.append(entry)
    return taken, False


def _append_unchecked(self: OriginLog, entries: Sequence[OriginEntry]) -> AppendEntries:
    heads: dict[int, int] = {}
    placed = []
    for entry in entries:
        base = self.history.offset
        entry = entry._replace(base_offset=base, next_offset=base + entry.next_offset - entry.base_offset)
        self.history.take(entry)
        heads[entry.origin] = entry.lsn
        placed.append(entry)
    self.index.passed(self.history, len(placed))
    return AppendEntries(self._stage(heads), tuple(placed))


def _recovered_without_the_last(files: Any, own: int) -> tuple[OriginIndex, Mark]:
    index, end = _recovered(files, own)
    history = History(end)
    if history.lsns[own]:
        history.lsns[own] -= 1
    return index, history.mark()


def _origin_of_the_node(world: Any) -> dict[int, int]:
    rows = [node for node, _ in world.origin_table]
    return {node: rows.index(node) + 1 for node in world.members}


def _latest_to_arrive_wins_ties(one: Cell, other: Cell) -> Cell:
    return one if one.version[3] > other.version[3] else other


def _trim_what_is_durable(self: RelaySide) -> int:
    return self._log.durable_end


def _acknowledge_at_once(self: IntakeSide, one: Subscription, out: list[MultiAction]) -> None:
    seq = max((seq for _, seq in one.acks), default=0)
    one.acks.clear()
    if seq:
        out.append(Tell(one.node, RelayAck(self._shard, TERM, one.session, seq, self._log.history.clock())))


_OFTEN = {"crash_weight": 8, "fault_every_ms": 40, "safety_ms": 3_000, "sync_us_mean": 5_000}


def _plant(name: str, description: str, patches: tuple[Patch, ...], **options: Any) -> Plant:
    return Plant(name, description, patches, profile=PROFILE, options=options)


_ALL = (
    _plant(
        "multi-ack-before-sync",
        "a write is committed when it is handed to the disk",
        ((MultiWriterReplica, "propose", _propose_and_commit),),
        **_OFTEN,
    ),
    _plant(
        "multi-relay-before-sync",
        "entries are relayed while they are on their way to the disk",
        ((RelaySide, "pump", _pump_what_is_staged),),
        **_OFTEN,
    ),
    _plant(
        "multi-duplicates-taken",
        "what comes by two paths is taken twice",
        ((IntakeSide, "_choose", _take_everything), (OriginLog, "append", _append_unchecked)),
    ),
    _plant(
        "multi-gaps-taken",
        "the next entry that comes is taken, whatever is missing before it",
        ((IntakeSide, "_choose", _take_beyond_gaps), (OriginLog, "append", _append_unchecked)),
        loss_ppm=50_000,
    ),
    _plant(
        "multi-lsn-reused",
        "a restarted replica numbers from before its last entry on",
        ((multi_node, "recovered", _recovered_without_the_last),),
        **_OFTEN,
    ),
    _plant(
        "multi-old-origin-on-new-disk",
        "a node whose disk was replaced writes as the origin that it was",
        ((multi_node, "origins_now", _origin_of_the_node),),
        **_OFTEN,
    ),
    _plant(
        "multi-writes-before-regaining",
        "a replica whose log was damaged writes on at once",
        ((Regain, "is_done", lambda _self, _origin: True),),
        **{**_OFTEN, "damage_ppm": 500_000},
    ),
    _plant(
        "multi-tie-by-arrival",
        "of two changes at the same time, the one that arrives later wins",
        ((merge, "last_writer_wins", _latest_to_arrive_wins_ties),),
        trim_weight=0,
    ),
    _plant(
        "multi-trims-without-asking",
        "a log is trimmed by its own watermark, whoever has not got it yet",
        ((RelaySide, "common_offset", _trim_what_is_durable),),
        trim_weight=12,
        partition_weight=6,
        crash_weight=6,
    ),
    _plant(
        "multi-acknowledges-before-sync",
        "an applier acknowledges what is not on its disk, and the others trim it",
        ((IntakeSide, "_acknowledge", _acknowledge_at_once),),
        **{**_OFTEN, "trim_weight": 12, "sync_us_mean": 15_000, "unsynced_kept_ppm": 0},
    ),
)

MULTI_PLANTS: dict[str, Plant] = {plant.name: plant for plant in _ALL}
