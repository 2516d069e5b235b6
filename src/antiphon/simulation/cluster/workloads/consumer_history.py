"""What members of a group of Kafka's consumer protocol asked for, and what they were told.

Their sessions and heartbeats are those of the nodes, or those that an operator has set of the group.
"""

from dataclasses import dataclass, field
from typing import Final

from antiphon.simulation.cluster.timing import CONSUMER_BEAT_MS as HEARTBEAT_MS
from antiphon.simulation.cluster.timing import CONSUMER_SESSION_MS as SESSION_MS
from antiphon.simulation.cluster.workloads.kafka_history import Commits

OWN_HEARTBEAT_MS: Final = 500  # where an operator has set it
OWN_SESSION_MS: Final = 6_000

OUTCOMES: Final = ("consumers-joined", "consumers-fenced", "consumers-committed", "consumers-refused")


@dataclass(slots=True)
class History(Commits):
    """`owners`: by partition, who was told that it has it, and until when it uses it without another answer.

    `has_own`: has the group sessions and heartbeats of its own?
    """

    has_own: bool = False

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    owners: dict[int, tuple[str, float]] = field(default_factory=dict)

    @property
    def heartbeat_ms(self) -> int:
        """How often members say that they are there."""
        return OWN_HEARTBEAT_MS if self.has_own else HEARTBEAT_MS

    @property
    def session_ms(self) -> int:
        """After so long a silence they are gone."""
        return OWN_SESSION_MS if self.has_own else SESSION_MS

    @property
    def lease_s(self) -> float:
        """Without an answer a member uses nothing for longer; clocks differ."""
        return 0.7 * self.session_ms / 1000
