"""What is committed in a shard, record by record, for workloads whose values say who wrote them."""

from collections.abc import Container, Iterator

from antiphon.simulation.cluster.truth import ShardTruth
from antiphon.simulation.violation import require


def each_once(truth: ShardTruth, sent: Container[bytes]) -> Iterator[tuple[bytes, int]]:
    """Value and offset of each committed record.

    Raises ViolationError for a value that nobody has sent, or that is there twice.
    """
    found: dict[bytes, int] = {}
    for record in truth.records():
        value = bytes(record.value or b"")
        require(value in sent, "nobodys-record", f"nobody has sent {value!r}", truth.shard_id)
        require(
            value not in found,
            "exactly-once",
            f"{value!r} is at {found.get(value)} and at {record.offset}",
            truth.shard_id,
        )
        found[value] = record.offset
        yield value, record.offset
