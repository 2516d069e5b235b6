"""A failed run in words, for the message of an assertion; and the order in which tests try seeds."""

from antiphon.simulation.cluster.run import ClusterResult


def words(result: ClusterResult) -> str:
    failure = result.failure
    if failure is None:
        return ""
    return "\n".join([failure.message, result.options.words(), *failure.trace])


def seeds_from(first: int, count: int) -> list[int]:
    """The seeds 1 to `count`, beginning with `first`: most often it shows the mistake, and the others need not run."""
    return [first, *(seed for seed in range(1, count + 1) if seed != first)]


FOUND_BEFORE = {"kill_midway_weight": 0, "power_midway_weight": 0}
"""Options for seeds that found something before there were such faults: with them they are other worlds."""
