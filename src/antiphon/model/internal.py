"""Internal topics and tables: their names, and who writes to them.

Names that begin with two underscores belong to the cluster. Only nodes write to some of them. Spark's jobs keep their
state in the others, as clients of the native protocol whose requests are marked (`internal`). The mark prevents
accidental writes. It does not protect against attackers, which needs authentication.
"""

from typing import Final

from antiphon.model.metadata import Kind, TopicMeta

PREFIX: Final = "__"
CLUSTER_LOG: Final = "__cluster"  # the coordinator's log, shard 0; no topic
GROUPS_TABLE: Final = "__groups"  # committed offsets of Kafka's consumer groups
TRANSACTIONS_TABLE: Final = "__transactions"  # one row for each transactional id
STAGED_TOPIC: Final = "__staged"  # rows of Spark's epochs until they are committed
EPOCHS_TABLE: Final = "__epochs"  # what was decided about those
JOBS_TABLE: Final = "__jobs"  # what jobs that may be started again remember
ARCHIVE_TABLE: Final = "__archive"  # which files hold which archived offsets

KINDS: Final = {
    GROUPS_TABLE: Kind.TABLE,
    TRANSACTIONS_TABLE: Kind.TABLE,
    STAGED_TOPIC: Kind.TOPIC,
    EPOCHS_TABLE: Kind.TABLE,
    JOBS_TABLE: Kind.TABLE,
    ARCHIVE_TABLE: Kind.TABLE,
}
NODES_ONLY: Final = (CLUSTER_LOG, GROUPS_TABLE, TRANSACTIONS_TABLE)


def is_internal(topic: TopicMeta) -> bool:
    """Is it an internal topic or table?"""
    return topic.internal or topic.name.startswith(PREFIX)


def write_problem(name: str, *, internal: bool) -> str | None:
    """Why a client's write to an internal topic or table is refused, or None. `internal`: the request says it is a job's."""
    if name in NODES_ONLY:
        return f"{name!r} belongs to the cluster: only its nodes write there"
    if not internal:
        return (
            f"{name!r} belongs to the cluster: only its own jobs write there, as requests with `internal` set"
        )
    return None
