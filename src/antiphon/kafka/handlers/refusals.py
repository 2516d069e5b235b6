"""What the handlers of administration share: what they refuse by themselves, how that is answered, and how long they try."""

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from antiphon.coordination.topic_settings import TOPIC_SETTINGS
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages.shared import PartitionCode, PartitionsOfTopic, TopicCodes
from antiphon.model.internal import is_internal
from antiphon.model.metadata import TopicMeta

TIMEOUT_S_MAX: Final = 120.0
TIMEOUT_S_MIN: Final = 1.0
_NO_OTHERS: Final[Mapping[tuple[str, int], int]] = {}


class RefusedError(Exception):
    """A request, or a part of one, that is refused with a code of Kafka's. `reason` None: the code says it all.

    A handler that raises it has the whole request answered with it (`kafka.error_answers`).
    """

    def __init__(self, error_code: int, reason: str | None = None) -> None:
        super().__init__(reason)
        self.error_code = error_code
        self.reason = reason


def alike(
    topics: Iterable[PartitionsOfTopic], error_code: int, others: Mapping[tuple[str, int], int] = _NO_OTHERS
) -> list[TopicCodes]:
    """The same outcome for all partitions, but for `others`."""
    return [
        TopicCodes(
            name=topic.name,
            partitions=[
                PartitionCode(partition_index=index, error_code=others.get((topic.name, index), error_code))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


async def outcome(work: Awaitable[None]) -> tuple[int, str | None]:
    """Code and message of what `work` comes to."""
    try:
        await work
    except RefusedError as refused:
        return refused.error_code, refused.reason
    except AntiphonError as error:
        return code.code_of(error), error.message
    return code.NONE, None


class Told(Protocol):
    """A part of an answer, with its outcome."""

    error_code: int
    error_message: str | None


ToldT = TypeVar("ToldT", bound=Told)


@contextmanager
def telling(part: Told) -> Iterator[None]:
    """The part of an answer tells of what the block refuses. Errors go on: of rights that are not known yet, for example."""
    try:
        yield
    except RefusedError as refused:
        part.error_code, part.error_message = refused.error_code, refused.reason


async def told(part: ToldT, work: Awaitable[None]) -> ToldT:
    """The part of an answer, with code and message of what `work` comes to."""
    part.error_code, part.error_message = await outcome(work)
    return part


@contextmanager
def coordinator_errors() -> Iterator[None]:
    """Errors of a coordinator are told as its clients know them. An unknown group is the caller's."""
    try:
        yield
    except AntiphonError as error:
        raise RefusedError(code.coordinator_code_of(error), error.message) from error


@contextmanager
def config_errors(has_config: bool) -> Iterator[None]:
    """What else could be wrong was checked before: where settings came along, the coordinator refuses one of them."""
    try:
        yield
    except InvalidRequestError as error:
        raise RefusedError(
            code.INVALID_CONFIG if has_config else code.INVALID_REQUEST, error.message
        ) from error


@contextmanager
def placement_errors(has_placement: bool) -> Iterator[None]:
    """What else could be wrong was checked before: where replicas are placed by hand, the coordinator refuses a node."""
    try:
        yield
    except InvalidRequestError as error:
        if not has_placement:
            raise
        raise RefusedError(code.INVALID_REPLICA_ASSIGNMENT, error.message) from error


def refuse_internal(topic: TopicMeta) -> None:
    """Clients do not change what belongs to the cluster."""
    if is_internal(topic):
        raise RefusedError(code.INVALID_TOPIC_EXCEPTION, f"{topic.name!r} belongs to the cluster")


def check_setting(name: str, value: str | None) -> None:
    """Refuse what is no setting of topics, and a value that can be nobody's; None: the default."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise RefusedError(code.INVALID_CONFIG, f"{name!r} is not a setting of topics")
    problem = None if value is None else setting.problem(value)
    if problem:
        raise RefusedError(code.INVALID_CONFIG, problem)


def timeout_s(timeout_ms: int) -> float:
    """How long to try: what the client wants, within bounds."""
    return min(max(timeout_ms / 1000, TIMEOUT_S_MIN), TIMEOUT_S_MAX)
