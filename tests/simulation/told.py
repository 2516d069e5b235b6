"""A failed run in words, for the message of an assertion."""

from antiphon.simulation.cluster.run import ClusterResult


def words(result: ClusterResult) -> str:
    failure = result.failure
    if failure is None:
        return ""
    return "\n".join([failure.message, result.options.words(), *failure.trace])
