"""AlterPartitionReassignments and ListPartitionReassignments: replicas that are moved by hand."""

from typing import Annotated

from antiphon.kafka.messages.shared import PartitionOutcome, PartitionsOfTopic, ReasonResponse, Response
from antiphon.kafka.schema import I16, I32, Message, V


class ReassignedPartition(Message, kw_only=True):
    """`replicas`: the nodes that are to hold it; None: the move under way is taken back."""

    partition_index: I32
    replicas: list[I32] | None


class ReassignedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[ReassignedPartition]


class AlterPartitionReassignmentsRequest(Message, kw_only=True):
    """Begin moves, replace them by others, or take them back."""

    timeout_ms: I32
    allow_replication_factor_change: Annotated[bool, V(1)] = True
    topics: list[ReassignedTopic]


class ReassignedTopicOutcome(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[PartitionOutcome]


class AlterPartitionReassignmentsResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    allow_replication_factor_change: Annotated[bool, V(1)] = True
    error_code: I16 = 0
    error_message: str | None = None
    responses: list[ReassignedTopicOutcome] = []


class ListPartitionReassignmentsRequest(Message, kw_only=True):
    """Ask for moves that are under way; `topics` None: all."""

    timeout_ms: I32
    topics: list[PartitionsOfTopic] | None


class OngoingReassignment(Message, kw_only=True):
    """One partition: all nodes that hold it now or will, and of these who comes and who goes."""

    partition_index: I32
    replicas: list[I32]
    adding_replicas: list[I32]
    removing_replicas: list[I32]


class OngoingTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[OngoingReassignment]


class ListPartitionReassignmentsResponse(ReasonResponse, kw_only=True):
    """The moves."""

    topics: list[OngoingTopic] = []
