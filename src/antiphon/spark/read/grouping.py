"""Several small ranges or shards in one task: each task costs Spark about as much as reading some thousand records."""

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition


class PartitionGroup(InputPartition):
    """What one task reads, part by part."""

    def __init__(self, parts: Sequence[InputPartition]) -> None:
        super().__init__(tuple(part.value for part in parts))
        self.parts = tuple(parts)


def grouped(parts: Sequence[InputPartition], sizes: Sequence[int], most: int | None) -> list[InputPartition]:
    """At most `most` partitions that have all `parts`, of about the same size; None: as they are.

    The same parts of the same sizes are always grouped alike, and stay in their order within a group: a micro-batch that is
    run again gives the same rows in the same tasks.
    """
    if most is None or len(parts) <= most:
        return list(parts)
    bins: list[list[int]] = [[] for _ in range(most)]
    filled = [0] * most
    for at in sorted(range(len(parts)), key=lambda at: (-sizes[at], at)):
        emptiest = min(range(most), key=lambda one: (filled[one], len(bins[one]), one))
        bins[emptiest].append(at)
        filled[emptiest] += sizes[at]
    return [PartitionGroup([parts[at] for at in sorted(chosen)]) for chosen in sorted(map(sorted, bins))]


def parts_of(partition: InputPartition | None) -> tuple[InputPartition | None, ...]:
    """What a task that got `partition` reads."""
    return partition.parts if isinstance(partition, PartitionGroup) else (partition,)
