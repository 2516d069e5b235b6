"""Answers of a listener that is to fail: a request's own parts with an error code where a Kafka broker puts it.

A request that asks for nothing may have no place for the error, and gets no answer from here then. Metadata is not among
these: it also tells the brokers, so the listener takes a true answer and changes it.
"""

from typing import Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.api import Api
from antiphon.kafka.error_answers import answer_part, refused
from antiphon.kafka.fetch_codec import FetchRequest, PartitionFetched, TopicFetched, encode_fetch
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.messages import share_groups
from antiphon.kafka.produce_codec import PartitionProduced, ProduceRequest, encode_produce
from antiphon.kafka.schema import Message
from antiphon.kafka.share_fetch_codec import ShareFetched, encode_share_fetch
from antiphon.records.batch import Buffer

REASON: Final = "a test asked for this error"
SESSION_ERRORS: Final = (code.FETCH_SESSION_ID_NOT_FOUND, 71)  # of a Fetch as a whole
_FIRST_SESSIONS: Final = 7
FIRST_ERROR_OF_LOG_DIRS: Final = 3
LOGINS: Final = frozenset(
    {"SaslHandshake", "SaslAuthenticate"}
)  # what goes wrong there is told by the login itself
SHARE_SESSION_ERRORS: Final = (
    code.SHARE_SESSION_NOT_FOUND,
    code.INVALID_SHARE_SESSION_EPOCH,
    code.SHARE_SESSION_LIMIT_REACHED,
)


def failed_produce(header: RequestHeader, request: ProduceRequest, error: int) -> bytearray | None:
    """The response frame; the error stands beside each partition."""
    topics = [
        (name, [PartitionProduced(batch.partition, error, error_message=REASON) for batch in batches])
        for name, batches in request.topics
    ]
    return encode_produce(header, topics, []) if any(batches for _, batches in topics) else None


def failed_fetch(header: RequestHeader, request: FetchRequest, error: int) -> list[Buffer] | None:
    """The response frame. The error stands beside each partition, one of a fetch session at the top."""
    if not any(wanted.partitions for wanted in request.topics):
        return None
    if error in SESSION_ERRORS and header.version >= _FIRST_SESSIONS:
        return encode_fetch(header, error, [], [])
    topics = [
        TopicFetched(
            wanted.name,
            wanted.topic_id,
            [PartitionFetched(partition.partition, error) for partition in wanted.partitions],
        )
        for wanted in request.topics
    ]
    return encode_fetch(header, 0, topics, [], isolation=request.isolation)


def failed_share_fetch(
    header: RequestHeader, request: share_groups.ShareFetchRequest, error: int
) -> list[Buffer] | None:
    """The response frame. The error stands beside each partition that is named, one of a share session at the top."""
    if error in SHARE_SESSION_ERRORS:
        return encode_share_fetch(header, error, REASON)
    found = [
        ShareFetched(topic.topic_id, wanted.partition_index, error, REASON)
        for topic in request.topics
        for wanted in topic.partitions
    ]
    return encode_share_fetch(header, code.NONE, None, found) if found else None


def can_fail(api: Api) -> bool:
    """Is there an answer with an error to its requests?"""
    return api.name not in LOGINS and api.response is not None


def failed(api: Api, request: Message, version: int, error: int) -> Message | None:
    """The response to a request of such an API; None where there is no place for the error."""
    if api.name == "DescribeLogDirs" and version < FIRST_ERROR_OF_LOG_DIRS:
        return None  # only a directory has an error there, and which there are is not the client's to say
    response: Message
    if isinstance(request, share_groups.ShareAcknowledgeRequest):  # the error stands beside each partition
        response = share_groups.ShareAcknowledgeResponse(
            responses=[
                answer_part(share_groups.ShareAcknowledgedTopic, topic, error, REASON)
                for topic in request.topics
            ]
        )
    else:
        response = refused(api, request, version, error, REASON)
    told = {name: getattr(response, name) for name in response.__struct_fields__}
    return (
        response
        if told.get("error_code") or any(isinstance(one, list) and one for one in told.values())
        else None
    )
