"""What members of a group of Kafka's consumer protocol asked for, and what they were told."""

from dataclasses import dataclass, field
from typing import Final

from antiphon.simulation.cluster.timing import CONSUMER_BEAT_MS as HEARTBEAT_MS
from antiphon.simulation.cluster.timing import CONSUMER_SESSION_MS as SESSION_MS
from antiphon.simulation.cluster.workloads.kafka_history import Commit, Found

__all__ = ["HEARTBEAT_MS", "SESSION_MS", "Commit", "Found", "History"]

OUTCOMES: Final = ("consumers-joined", "consumers-fenced", "consumers-committed", "consumers-refused")


@dataclass(slots=True)
class History:
    """`owners`: by partition, who was told that it has it, and until when it uses it without another answer."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    commits: dict[str, Commit] = field(default_factory=dict)  # by its text
    acknowledged: dict[int, list[str]] = field(default_factory=dict)  # by partition, in order of time
    found: list[Found] = field(default_factory=list)
    owners: dict[int, tuple[str, float]] = field(default_factory=dict)
