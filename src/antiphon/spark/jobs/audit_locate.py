"""Where exactly do replicas part? Reads a block again from everybody who holds it, and compares batch by batch.

A digest says that two replicas differ somewhere among thousands of batches; this says at which one, and how. The second look
is also the proof that the first one was not fooled: what is committed stays as it is, so replicas that agree the second time
were mended, or failed over with a loss, while the audit ran.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from antiphon.errors import AntiphonError, CorruptBatchError
from antiphon.records.batch import BatchHeader, iter_batches
from antiphon.spark.jobs.audit_blocks import ReplicaLog
from antiphon.spark.jobs.audit_judge import odd_ones
from antiphon.spark.jobs.audit_model import DIFFERS, INCOMPLETE, Finding

PLACES_MAX: Final = 5  # of one replica in one block
ANSWERS_MAX: Final = 10_000  # of one replica for one block: a bound, not a limit anybody meets


class SeenBatch(NamedTuple):
    """One batch of one replica."""

    header: BatchHeader
    digest: bytes

    def __str__(self) -> str:
        head = self.header
        said = (
            f"a batch {head.base_offset}..{head.next_offset - 1} of {head.size_bytes} bytes, CRC {head.crc:#010x}, "
            f"term {head.leader_epoch}"
        )
        if head.producer_id >= 0:
            said += f", producer {head.producer_id} sequence {head.base_sequence}"
        return said


def batches_of(log: ReplicaLog, shard_id: int, start: int, end: int) -> dict[int, SeenBatch]:
    """The batches of a replica that begin in [start, end), by base offset. Stops at what is no batch."""
    found: dict[int, SeenBatch] = {}
    offset = start
    for _ in range(ANSWERS_MAX):
        _, payload = log.fetch(shard_id, offset)
        before = offset
        try:
            for header, batch in iter_batches(payload):
                if header.base_offset >= end:
                    return found
                if header.base_offset >= start:
                    found.setdefault(header.base_offset, SeenBatch(header, xxh3_128_digest(batch)))
                offset = max(offset, header.next_offset)
        except CorruptBatchError:
            return found
        if offset >= end or offset == before:
            return found
    return found


def locate(
    logs: Mapping[int, ReplicaLog], shard_id: int, start: int, end: int, nodes: Sequence[int]
) -> list[Finding]:
    """Where the replicas on `nodes` differ in the block [start, end)."""
    seen: dict[int, dict[int, SeenBatch]] = {}
    found: list[Finding] = []
    for node in nodes:
        try:
            seen[node] = batches_of(logs[node], shard_id, start, end)
        except AntiphonError as error:
            what = f"it differs from the others in {start} to {end - 1}, and could not be read again: {error.message}"
            found.append(Finding(DIFFERS, "differs", shard_id, node, start, what))
    offsets = sorted({offset for own in seen.values() for offset in own})
    places: dict[int, int] = dict.fromkeys(seen, 0)
    for offset in offsets:
        digests = {node: _digest(own, offset) for node, own in seen.items()}
        for node in odd_ones(digests):
            places[node] += 1
            if places[node] <= PLACES_MAX:
                found.append(
                    Finding(DIFFERS, "differs", shard_id, node, offset, _how(seen, node, offset, digests))
                )
    for node, count in places.items():
        if count > PLACES_MAX:
            what = f"{count} batches differ in offsets {start} to {end - 1}"
            found.append(Finding(DIFFERS, "differs_more", shard_id, node, start, what))
    if not found:
        what = (
            f"offsets {start} to {end - 1} differed between nodes {_names(nodes)} when they were first read, and agree now: "
            "a replica was mended, or a fail-over lost entries, meanwhile; run the audit again"
        )
        found.append(Finding(INCOMPLETE, "unsteady", shard_id, nodes[0], start, what))
    return found


def _digest(own: Mapping[int, SeenBatch], offset: int) -> bytes:
    batch = own.get(offset)
    return b"" if batch is None else batch.digest


def _how(
    seen: Mapping[int, Mapping[int, SeenBatch]], node: int, offset: int, digests: Mapping[int, bytes]
) -> str:
    """What `node` has at `offset`, and what the others have there."""
    own = seen[node].get(offset)
    others = [other for other in seen if digests[other] != digests[node]]
    theirs = seen[others[0]].get(offset)
    same = [other for other in others if digests[other] == digests[others[0]]]
    has = "no batch that begins here" if own is None else str(own)
    have = "no batch that begins here" if theirs is None else str(theirs)
    if own is not None and theirs is not None and own.header == theirs.header:
        have = "the same header with other bytes behind it"
    return f"it has {has}; node {_names(same)} has {have}"


def _names(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
