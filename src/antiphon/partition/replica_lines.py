"""Lines of one replica in the node's log: each says of which shard it is, in which term, and where the log ends.

With these three one finds what happened at the same place of the log on the other nodes.
"""

from typing import Any

import structlog

from antiphon.partition.replica_view import ReplicaView


class ReplicaLines:
    """See the module's text. What an event says itself goes before what is added to it."""

    def __init__(self, shard_id: int, replica: ReplicaView) -> None:
        self._replica = replica
        self._log = structlog.get_logger().bind(shard=shard_id)

    def debug(self, event: str, **facts: Any) -> None:
        """For whoever looks for a fault."""
        self._log.debug(event, **self._placed(facts))

    def info(self, event: str, **facts: Any) -> None:
        """What happened, as it ought to."""
        self._log.info(event, **self._placed(facts))

    def warning(self, event: str, **facts: Any) -> None:
        """What somebody may want to know of."""
        self._log.warning(event, **self._placed(facts))

    def error(self, event: str, **facts: Any) -> None:
        """What somebody has to know of."""
        self._log.error(event, **self._placed(facts))

    def _placed(self, facts: dict[str, Any]) -> dict[str, Any]:
        replica = self._replica
        return {"term": replica.term, "log_end": replica.log_end, **facts}
