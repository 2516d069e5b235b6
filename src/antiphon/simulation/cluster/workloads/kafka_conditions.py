"""Conditional appends over Kafka's protocol (KIP-27): writers that all want the next offset, and one gets it.

- `condition-kept`: whatever is committed is where its writer said that it must be, also what was never answered.
- `condition-refused`: a refusal names another end than the one that was expected, and all below it is committed.
- `exactly-once`, `acknowledged-kept`: an answered append is there once, also where it was sent again.
"""

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon import system
from antiphon.kafka import error_codes as code
from antiphon.records.builder import build_batch
from antiphon.records.expected import NAME
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.judged_records import each_once
from antiphon.simulation.cluster.workloads.kafka_produce import RETRIABLE
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

RECORDS_MAX: Final = 3
ANYWHERE: Final = -1
HEADER: Final = NAME.decode()
REFUSED: Final = re.compile(r"land at offset (\d+), the shard's next offset is (\d+)")


class _Claim(NamedTuple):
    """A batch, and where it has to be written."""

    partition: int
    expected: int  # ANYWHERE: it has no condition
    values: list[bytes]
    data: bytes


@workload("kafka_conditions", 47, Drawn(seldom(0.15, 3)), logs_in=False)
class ConditionalWriters(KafkaWorkload):
    """Writers that append at the offset which they take for the next one, by the base offset of the batch or by a header of
    some of its records; half of them are idempotent, some appends have no condition, some batches are compressed. What is
    not answered is sent again as it was, if it cannot be there twice then. One world in seven has them.

    Checked: each committed record is where its writer said that it must be, once, also where nobody was told so; a refusal
    names another end than the expected one, and all below that is committed; a retry is answered with the first offset.
    """

    topic = "claims"

    def __init__(self, cluster: "SimulatedCluster", name: str = "claimant") -> None:
        super().__init__(cluster, name)
        self.config = {"expected.offset.header": "true"}
        self.outcomes = {"claimed": 0, "claim_refused": 0, "claim_retried": 0, "unclaimed": 0}
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # value -> (partition, offset)
        self.sent: dict[bytes, int] = {}  # value -> the offset that it must have

    async def _work(self, process: "Process", number: int) -> None:
        client = self.client(process)
        writer = _Writer(self, client, number)
        await writer.begin()
        while not self.stopped:
            await self.think(process)
            await writer.claim()
        client.close()

    def landed(self, claim: _Claim, base_offset: int) -> None:
        """An append was acknowledged."""
        shard_id = self.shard_ids[claim.partition]
        self.outcomes["unclaimed" if claim.expected == ANYWHERE else "claimed"] += 1
        require(
            claim.expected in {ANYWHERE, base_offset},
            "condition-kept",
            f"{claim.values[0]!r} must be at {claim.expected}, and is said to have been written at {base_offset}",
            shard_id,
        )
        for place, value in enumerate(claim.values):
            self.acknowledged[value] = (claim.partition, base_offset + place)
        end = self.end_of(claim.partition)
        require(
            base_offset + len(claim.values) <= end,
            "acknowledged-committed",
            f"{claim.values[0]!r} was acknowledged at {base_offset}, committed is {end}",
            shard_id,
        )

    def refused(self, claim: _Claim, reason: str) -> int:
        """An append was refused for its condition: where the log is said to end."""
        self.outcomes["claim_refused"] += 1
        shard_id, said = self.shard_ids[claim.partition], REFUSED.search(reason)
        expected, actual = (int(one) for one in said.groups()) if said else (ANYWHERE, ANYWHERE)
        committed = self.end_of(claim.partition)
        require(
            said is not None and expected == claim.expected != actual and actual <= committed,
            "condition-refused",
            f"{claim.values[0]!r}, which must be at {claim.expected}, is refused: {reason}; committed is {committed}",
            shard_id,
        )
        return actual

    def check(self) -> None:
        """See `Workload`."""
        for partition, shard_id in self.shard_ids.items():
            found = dict(each_once(self.cluster.evidence.truth(shard_id), self.sent))
            for value, offset in found.items():
                require(
                    self.sent[value] in {ANYWHERE, offset},
                    "condition-kept",
                    f"{value!r} must be at {self.sent[value]}, and is at {offset}",
                    shard_id,
                )
            for value, (where, offset) in self.acknowledged.items():
                require(
                    where != partition or found.get(value) == offset,
                    "acknowledged-kept",
                    f"{value!r} was acknowledged at {offset}, it is at {found.get(value)}",
                    shard_id,
                )


class _Writer:
    """One writer: it has one append under way."""

    def __init__(self, owner: ConditionalWriters, client: KafkaClient, number: int) -> None:
        self._owner = owner
        self._client = client
        self._number = number
        self._draw = client.random
        self._serial = 0
        self._producer_id = -1
        self._sequences = dict.fromkeys(owner.shard_ids, 0)  # of the next batch, where there is a producer id
        self._next = dict.fromkeys(owner.shard_ids, 0)  # where each partition is thought to end

    async def begin(self) -> None:
        """Half of the writers are idempotent."""
        if self._draw.random() < 0.5:
            self._producer_id = await self._client.producer_id()

    async def claim(self) -> None:
        """One append, sent until its outcome is known, or the world is about to end. Only a condition or a sequence keeps
        one that is sent again from being there twice.
        """
        claim = self._drawn()
        while not await self._sent(claim):
            if self._owner.stopped or (claim.expected == ANYWHERE and self._producer_id < 0):
                return
            self._owner.outcomes["claim_retried"] += 1
            self._client.forget(self._owner.topic, claim.partition)
            await self._client.back_off()

    async def _sent(self, claim: _Claim) -> bool:
        """Is the outcome known now? Where it was sent before, and nobody answered, a refusal leaves it open."""
        topic, partition = self._owner.topic, claim.partition
        try:
            address, _ = await self._client.leader(topic, partition)
            done = await self._client.produce(address, topic, partition, claim.data)
        except NoAnswerError:
            return False
        if done.error_code == code.NONE:
            self._owner.landed(claim, done.base_offset)
            self._next[partition] = done.base_offset + len(claim.values)
            self._sequences[partition] += len(claim.values)
            return True
        if done.error_code == code.INVALID_RECORD:
            self._next[partition] = self._owner.refused(claim, done.error_message or "")
            return True
        require(
            done.error_code in RETRIABLE,
            "claim-refused",
            f"{claim.values[0]!r} is refused with error {done.error_code}: {done.error_message}",
            self._owner.shard_ids[partition],
        )
        return False

    def _drawn(self) -> _Claim:
        draw = self._draw
        partition = draw.choice(list(self._owner.shard_ids))
        expected = (
            ANYWHERE if draw.random() < 0.1 else self._next[partition] + draw.choice((0, 0, 0, 0, 0, 1))
        )
        count = draw.randint(1, RECORDS_MAX)
        by_header = expected != ANYWHERE and draw.random() < 0.6
        named = draw.randrange(count)  # this one names its offset; the others as it comes
        values, records = [], []
        for place in range(count):
            value = b"%d:%d" % (self._number, self._serial)
            self._serial += 1
            at = ANYWHERE if expected == ANYWHERE else expected + place
            self._owner.sent[value] = at
            says = by_header and (place == named or draw.random() < 0.5)
            headers = [(HEADER, b"%d" % at)] if says else []
            values.append(value)
            records.append((None, value, headers, system.wall_ms()))
        is_producer = self._producer_id >= 0
        data = build_batch(
            records,
            base_offset=0 if by_header or expected == ANYWHERE else ~expected,
            producer_id=self._producer_id,
            producer_epoch=0 if is_producer else -1,
            base_sequence=self._sequences[partition] if is_producer else -1,
            compression=draw.choice(("none", "none", "gzip")),
        )
        return _Claim(partition, expected, values, bytes(data))
