"""What messages of several families have in common: how responses begin, outcomes of parts, and partitions by name."""

from antiphon.kafka.schema import I16, I32, Message


class Response(Message, kw_only=True):
    """A response of an API all of whose versions tell the client to wait, in ms."""

    throttle_time_ms: I32 = 0


class ErrorResponse(Response, kw_only=True):
    """One that may have an error as a whole."""

    error_code: I16 = 0


class ReasonResponse(ErrorResponse, kw_only=True):
    """One that also says why."""

    error_message: str | None = None


class Outcome(Message, kw_only=True):
    """What became of a part of a request, the first thing that its part of the answer says."""

    error_code: I16 = 0
    error_message: str | None = None


class PartitionsOfTopic(Message, kw_only=True):
    """Partitions of one topic, by its name."""

    name: str
    partitions: list[I32]


class PartitionCode(Message, kw_only=True):
    """Outcome for one partition."""

    partition_index: I32
    error_code: I16 = 0


class TopicCodes(Message, kw_only=True):
    """Outcomes for partitions of one topic."""

    name: str
    partitions: list[PartitionCode]


class PartitionOutcome(PartitionCode, kw_only=True):
    """Outcome for one partition, and why."""

    error_message: str | None = None
