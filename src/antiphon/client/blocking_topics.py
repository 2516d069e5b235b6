"""Topics and tables that the blocking client makes, and waits for: nodes learn of a change one after the other."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from antiphon.client.blocking import Cluster
from antiphon.errors import TopicExistsError, UnavailableError, UnknownTopicError
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import CreateTopic

FoundT = TypeVar("FoundT")


def until(cluster: Cluster, seen: Callable[[], FoundT | None], lacks: str) -> FoundT:
    """What `seen` finds in the metadata, which is asked for until it finds something.

    `lacks` says what is not there yet. Raises TimedOutError.
    """
    tries = cluster.tries()
    while (found := seen()) is None:
        cluster.learn(UnavailableError(lacks), tries)
    return found


def created(cluster: Cluster, wanted: CreateTopic) -> TopicMeta:
    """Make a topic or table unless it is there; returns it as soon as the metadata has it.

    Raises WrongKindError where the other one has that name, what the cluster refuses with, and TimedOutError.
    """
    with suppress(TopicExistsError):  # somebody was faster, or an earlier try had no answer
        cluster.call_any(wanted)

    def seen() -> TopicMeta | None:
        with suppress(UnknownTopicError):
            return cluster.topic(wanted.name, table=wanted.kind is Kind.TABLE, refresh=False)
        return None

    return until(cluster, seen, f"{wanted.kind} {wanted.name} was made, and is in no node's metadata yet")
