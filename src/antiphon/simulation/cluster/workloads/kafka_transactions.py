"""Transactional producers, zombies and abandoned transactions; what they commit is all there, and nothing else is.

Every second producer is a Python client, the others speak Kafka's protocol.


- `transaction-half`: of a transaction every record is committed, in each of its partitions, in order and once, or none is.
- `transaction-lost`: one whose commit was answered is committed.
- `transaction-undecided`: every marker says what its transaction's row said first.
- `transaction-risen`: one whose abort was answered, or whose commit was refused, or that was abandoned, is not committed.
- `transaction-open`: after the faults every transaction ends, within its time-out and the time that it takes to tell all.
- `transaction-offsets`: an offset that was sent with a transaction is the group's if and only if it was committed.
- `transaction-early`: nobody is told of an offset before its transaction's end was asked for.
- `zombie`: a producer that was fenced commits nothing that it wrote afterwards.
- `read-committed`: who reads committed records gets those of committed transactions, in order, and no others.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.coordination.transactions import PREPARED, Row, State
from antiphon.model.internal import GROUPS_TABLE, TRANSACTIONS_TABLE
from antiphon.records.batch import HEADER_BYTES, read_header
from antiphon.records.builder import end_marker_of
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.kafka_transactor import GROUP, Transactor
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.native_transactor import NativeTransactor
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.transactions_book import Asked, Book
from antiphon.simulation.violation import require
from antiphon.transactions.group_offsets import Committed

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "transacted"


@workload("kafka_transactors", 20, Drawn(one_of(0, 0, 0, 1, 2, 3), "transactors"), logs_in=False)
class TransactionalWorkload(KafkaWorkload):
    """Transactional producers, Kafka's and Python clients, with ids that others take over: commits, aborts, abandoned
    transactions, offsets of a group, zombies.

    Checked: a transaction is committed in all of its partitions or in none, in order and once, as its client was told;
    offsets come with it and not before; a fenced producer commits nothing; none stays open; who reads committed records
    gets those and no others.
    """

    topic = TOPIC

    def __init__(self, cluster: "SimulatedCluster", name: str = "transactors") -> None:
        super().__init__(cluster, name)
        if cluster.options.scrub:
            self.config = {"segment.bytes": "4096"}  # so that indexes of aborted transactions are closed
        self._book = Book()
        self.outcomes = self._book.outcomes
        self._transactors: dict[int, Transactor] = {}
        self._rested = 0  # transactors that begin nothing any more
        self._read: dict[int, list[str]] = {}  # by partition: what a reader of committed records was given

    async def _work(self, process: "Process", number: int) -> None:
        before = self._transactors.get(self.heirs.get(number, -1))
        place = number if before is None else before.numbers[0]
        kind = NativeTransactor if place % 2 else Transactor
        transactor = self._transactors[number] = kind(self, self._book, process, self.client(process), number)
        if before is not None:
            transactor.inherit(before)
        while not self.stopped:
            await transactor.one()
            await self.think(process, 10)
        await transactor.rest()
        self._rested += 1
        if not place:
            await self._read_all(transactor)

    async def _read_all(self, reader: Transactor) -> None:
        """What a consumer with read_committed is given, once nothing is under way any more."""
        count = self.cluster.options.kafka_transactors
        while self._rested < count or any(not asked.at_rest for asked in self._book.asked.values()):  # noqa: ASYNC110 (nobody says when)
            await asyncio.sleep(0.2)
        for partition in self.shard_ids:
            self._read[partition] = await reader.read_committed(partition)

    # -- judged at the end ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        found = {partition: self._decided(partition) for partition in self.shard_ids}
        offsets = self._offsets()
        decisions = self._decisions()
        for shard_id in self.shard_ids.values():
            self._check_markers(shard_id, decisions)
        for asked in self._book.asked.values():
            self._check_one(asked, found, offsets)
        for partition, texts in self._read.items():
            committed = [text for text, commit in found[partition] if commit]
            require(
                texts == committed,
                "read-committed",
                f"a reader of committed records of partition {partition} got {texts}, not {committed}",
                self.shard_ids[partition],
            )

    def _decided(self, partition: int) -> list[tuple[str, bool]]:
        """Each record and whether its transaction was committed, in order."""
        shard_id = self.shard_ids[partition]
        open_: dict[int, list[int]] = {}
        found: list[tuple[str, bool]] = []
        for batch in self.cluster.evidence.truth(shard_id).batches:
            header = read_header(batch.data)
            if not header.is_control:
                for record in decode_records(batch.data):
                    open_.setdefault(header.producer_id, []).append(len(found))
                    found.append((bytes(record.value or b"").decode(), False))
            elif header.is_transactional:
                commit = _is_commit(batch.data)
                for at in open_.pop(header.producer_id, []):
                    found[at] = (found[at][0], commit)
        left = sorted(found[at][0] for places in open_.values() for at in places)
        require(not left, "transaction-open", f"{left[:5]} belong to transactions that never ended", shard_id)
        return found

    def _decisions(self) -> dict[tuple[int, int], set[State]]:
        """What was decided of each transaction, by producer id and number, as the rows ever said."""
        found: dict[tuple[int, int], set[State]] = {}
        for shard in self.cluster.shards_of(TRANSACTIONS_TABLE):
            for _, value, _ in self.cluster.evidence.truth(shard.shard_id).effects():
                row = None if value is None else msgspec.msgpack.decode(value, type=Row)
                if row is not None and row.state in PREPARED:
                    found.setdefault((row.producer_id, row.number), set()).add(row.state)
        return found

    def _check_markers(self, shard_id: int, decisions: dict[tuple[int, int], set[State]]) -> None:
        for batch in self.cluster.evidence.truth(shard_id).batches:
            header = read_header(batch.data)
            if header.is_control and header.is_transactional:
                said = end_marker_of(batch.data)
                if said is None:
                    continue
                commit, number = said
                decided = decisions.get((header.producer_id, number), set())
                require(
                    decided == {State.PREPARE_COMMIT if commit else State.PREPARE_ABORT},
                    "transaction-undecided",
                    f"a marker {'commits' if commit else 'aborts'} number {number} of producer {header.producer_id}, whose "
                    f"row said {sorted(decided)}",
                    shard_id,
                )

    def _check_one(
        self, asked: Asked, found: dict[int, list[tuple[str, bool]]], offsets: dict[str, int]
    ) -> None:
        for partition, values in asked.acknowledged.items():
            shard_id = self.shard_ids[partition]
            mine = [text for text, commit in found[partition] if commit and text in asked.sent]
            there = [text for text, _ in found[partition] if text in asked.sent]
            require(
                mine in ([], values),
                "transaction-half",
                f"of {values}, which belong to one transaction, {mine} are committed",
                shard_id,
            )
            if asked.outcome == "committed":
                require(
                    mine == values, "transaction-lost", f"{values} was committed; there is {there}", shard_id
                )
            if asked.outcome == "not":
                require(not mine, asked.broken or "transaction-risen", f"{mine} was not committed", shard_id)
        commits = {
            partition: any(commit for text, commit in found[partition] if text in asked.sent)
            for partition, values in asked.acknowledged.items()
            if values
        }
        shard_id = self.shard_ids[min(self.shard_ids)]
        require(len(set(commits.values())) < 2, "transaction-half", f"{asked.text}: {commits}", shard_id)
        is_committed = asked.outcome == "committed" or any(commits.values())
        if asked.offset is not None and (commits or asked.outcome in {"committed", "not"}):
            require(
                (asked.text in offsets) == is_committed
                or (is_committed and self._is_overtaken(asked, offsets)),
                "transaction-offsets",
                f"the offset of {asked.text} was {'' if asked.text in offsets else 'not '}committed, its records were "
                f"{'' if is_committed else 'not '}",
                shard_id,
            )

    def _is_overtaken(self, asked: Asked, offsets: dict[str, int]) -> bool:
        """Was an offset committed that the same client sent later, in a transaction that ended before? It stays."""
        later = (one for one in self._book.asked.values() if _client(one) == _client(asked))
        return any(
            one.offset is not None and one.offset > (asked.offset or 0) and one.text in offsets
            for one in later
        )

    def _offsets(self) -> dict[str, int]:
        """Offsets that were ever committed in the groups, by the text that came with them."""
        if not self.cluster.shards_of(GROUPS_TABLE):
            return {}
        groups = [f"{GROUP}{number}" for number in self._transactors]
        found: dict[str, int] = {}
        for shard_id in sorted({self.cluster.shard_of_group(group) for group in groups}):
            for key, value, _ in self.cluster.evidence.truth(shard_id).effects():
                if key.startswith(f"offset/{GROUP}".encode()) and value is not None:
                    row = msgspec.msgpack.decode(value, type=Committed)
                    number = key.removeprefix(f"offset/{GROUP}".encode()).partition(b"/")[0].decode()
                    found[row.metadata or f"{number}:{row.offset}"] = (
                        row.offset
                    )  # Python clients send no text
        return found


def _client(asked: Asked) -> str:
    return asked.text.partition(":")[0]


def _is_commit(batch: bytes) -> bool:
    """The marker's type: the second number of its record's key, behind lengths, attributes and deltas of one byte each."""
    key = HEADER_BYTES + 5
    return int.from_bytes(batch[key + 2 : key + 4], "big") == 1
