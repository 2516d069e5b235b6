"""What clients wrote around cuts, and what must be true of each cut."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from antiphon.coordination.transactions import PREPARED, Row
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.records.batch import read_header
from antiphon.records.builder import end_marker_of
from antiphon.records.decode import decode_records
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster

NEVER: Final = float("inf")


@dataclass(slots=True)
class Write:
    """A record or row with a text that no other has. Times are the world's; `acknowledged` of a transaction: its end."""

    text: str
    began: float
    acknowledged: float = NEVER
    in_transaction: bool = False


class TakenCut(NamedTuple):
    """A cut, and when it was begun and there."""

    ends: dict[int, int]
    began: float
    ended: float


class _Marker(NamedTuple):
    """The end of a transaction in one shard: the texts of its records there, and where it stands."""

    shard_id: int
    offset: int
    producer_id: int
    number: int
    texts: tuple[str, ...]


class CutHistory:
    """See the module's text."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self.writes: list[Write] = []
        self.cuts: list[TakenCut] = []
        self._places: dict[str, tuple[int, int]] = {}  # text -> shard, offset; of what is committed
        self._markers: list[_Marker] = []
        self._decided: dict[tuple[int, int], tuple[int, int]] = {}  # producer, number -> shard, offset

    def begun(self, write: Write) -> Write:
        """A write is about to be sent."""
        self.writes.append(write)
        return write

    def check(self, topic_shards: list[int], table_shards: list[int]) -> None:
        """Hold each cut against what became of all writes. Raises ViolationError."""
        for shard_id in (*topic_shards, *table_shards):
            self._learn(shard_id)
        self._learn_decisions()
        for cut in self.cuts:
            self._check_times(cut)
            self._check_transactions(cut)

    def _learn(self, shard_id: int) -> None:
        """Where each text is, and what the markers of transactions end."""
        open_: dict[int, list[str]] = {}
        for batch in self._cluster.evidence.truth(shard_id).batches:
            header = read_header(batch.data)
            if not header.is_control:
                texts = [bytes(one.value or b"").decode() for one in decode_records(batch.data)]
                self._places |= dict.fromkeys(texts, (shard_id, batch.base_offset))
                if header.is_transactional:
                    open_.setdefault(header.producer_id, []).extend(texts)
            elif header.is_transactional:
                said, texts = end_marker_of(batch.data), open_.pop(header.producer_id, [])
                if said is not None:
                    ids = header.producer_id, said[1]
                    self._markers.append(_Marker(shard_id, batch.base_offset, *ids, tuple(texts)))

    def _learn_decisions(self) -> None:
        for shard in self._cluster.shards_of(TRANSACTIONS_TABLE):
            for batch in self._cluster.evidence.truth(shard.shard_id).batches:
                for record in decode_records(batch.data):
                    row = msgspec.msgpack.decode(record.value, type=Row) if record.value else None
                    if row is not None and row.state in PREPARED:
                        key = row.producer_id, row.number
                        self._decided.setdefault(key, (shard.shard_id, batch.base_offset))

    def _check_times(self, cut: TakenCut) -> None:
        """What was acknowledged before it is in; what began after it is not; and there is one moment for all shards."""
        newest: Write | None = None  # of those that are in
        for write in self.writes:
            place = self._places.get(write.text)
            if place is None:
                continue
            is_in = place[1] < cut.ends.get(place[0], 0)
            require(
                is_in or write.acknowledged >= cut.began,
                "cut-lacks-acknowledged",
                f"{write} at {place[1]} was acknowledged before {cut} began",
                place[0],
            )
            require(
                not is_in or write.began <= cut.ended,
                "cut-has-later",
                f"{write} at {place[1]} began after {cut} had ended",
                place[0],
            )
            if is_in and (newest is None or write.began > newest.began):
                newest = write
        for write in self.writes if newest is not None else ():
            place = self._places.get(write.text)
            require(
                place is None
                or newest is None
                or write.acknowledged >= newest.began
                or place[1] < cut.ends.get(place[0], 0),
                "cut-not-causal",
                f"{newest} is in {cut}; {write} at {place} was acknowledged before that was sent, and is not",
                place[0] if place is not None else -1,
            )

    def _check_transactions(self, cut: TakenCut) -> None:
        """Where a marker is in, all records of the transaction are, in all shards, and so is the decision."""
        of_transaction: dict[tuple[int, int], list[_Marker]] = {}
        for marker in self._markers:
            of_transaction.setdefault((marker.producer_id, marker.number), []).append(marker)
        for key, markers in of_transaction.items():
            if not any(one.offset < cut.ends.get(one.shard_id, 0) for one in markers):
                continue
            decided = self._decided.get(key)
            require(
                decided is not None and decided[1] < cut.ends.get(decided[0], 0),
                "cut-lacks-decision",
                f"a marker of {key} is in {cut}, its decision, at {decided}, is not",
                markers[0].shard_id,
            )
            for text in (text for one in markers for text in one.texts):
                shard_id, offset = self._places[text]
                require(
                    offset < cut.ends.get(shard_id, 0),
                    "cut-transaction-half",
                    f"a marker of {key} is in {cut}; its record {text}, at {offset}, is not",
                    shard_id,
                )
