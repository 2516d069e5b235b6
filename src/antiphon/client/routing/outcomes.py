"""Whether a write that has no answer may have been carried out.

A write has no answer when its connection broke, when its caller's time ended, or when its leader was deposed before the
write was committed: such a leader says that it leads no more, of what it has appended and of what it has not. A read
has no outcome.
"""

from antiphon.client.connection_errors import ClientClosedError, ConnectionLostError
from antiphon.errors import (
    AntiphonError,
    NotLeaderError,
    NotReadyError,
    TimedOutError,
    UnavailableError,
)


def leaves_doubt(error: AntiphonError) -> bool:
    """May a write that was sent to a shard's leader, and failed like this, have been carried out?"""
    return isinstance(error, ConnectionLostError | TimedOutError | NotLeaderError)


def leaves_doubt_anywhere(error: AntiphonError) -> bool:
    """The same of a request that any node passes on to the coordinator of the cluster.

    A node that is left without an answer by a coordinator, which may have begun, says that none is available.
    """
    return isinstance(error, ConnectionLostError | TimedOutError | UnavailableError)


def leaves_doubt_at_coordinator(error: AntiphonError) -> bool:
    """The same of a step of a transaction or group, of which a coordinator may have carried out a part.

    A node says that it does not coordinate, or does not yet, before it begins.
    """
    return error.retriable and not isinstance(error, NotLeaderError | NotReadyError)


def unanswered(text: str, *, wrote: bool) -> TimedOutError:
    """No answer came in time to a request that was sent; `wrote`: it was a write."""
    error = TimedOutError(text)
    return error.with_unknown_outcome() if wrote else error


def end_of_write(*, sent: bool) -> TimedOutError:
    """The time of a write's caller is over; `sent`: it may have been carried out."""
    if sent:
        return TimedOutError("no answer in time; whether the write was carried out is not known", sent=True)
    return TimedOutError("the write could not be sent in time; it was not carried out", sent=False)


def of_write(error: AntiphonError, *, sent: bool) -> AntiphonError:
    """What the end of all tries means to a write: where it was sent, it may have been carried out."""
    if not isinstance(error, TimedOutError | UnavailableError):
        return error
    more = "; whether the write was carried out is not known" if sent else "; the write was not carried out"
    found = type(error)(error.message + more, **{**error.details, "sent": sent})
    found.__cause__ = error.__cause__
    return found


def is_known(error: AntiphonError) -> bool:
    """Does an error with which a write ended say that it was not carried out?"""
    if isinstance(error, TimedOutError) and error.details.get("sent") is False:
        return True
    return not (
        isinstance(error, TimedOutError | ClientClosedError) or error.retriable or error.outcome_unknown
    )
