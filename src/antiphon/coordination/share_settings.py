"""Settings of one group, under Kafka's names: what an operator may set, and what it means.

Most are of share groups. How often members say that they are there, and after which silence they are gone, may be said of
groups of the consumer protocol, too.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from antiphon.coordination.consumer_terms import GroupBounds
from antiphon.coordination.share_terms import ShareBounds
from antiphon.errors import InvalidRequestError

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BY_DURATION: Final = "by_duration:"
AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
ISOLATION_LEVEL: Final = "share.isolation.level"
LOCK_DURATION: Final = "share.record.lock.duration.ms"
DELIVERY_LIMIT: Final = "share.delivery.count.limit"
MAX_LOCKS: Final = "share.partition.max.record.locks"
RENEW: Final = "share.renew.acknowledge.enable"
HEARTBEAT_INTERVAL: Final = "heartbeat.interval.ms"  # behind the kind of group and a dot
SESSION_TIMEOUT: Final = "session.timeout.ms"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d{1,6})D)?(?:T(?:(?P<hours>\d{1,8})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,11})S)?)?"
)
_IN_MS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


class ShareSettings(NamedTuple):
    """What holds for one group. `reset`: earliest, latest, or by_duration: and how long ago in ISO 8601."""

    bounds: ShareBounds = ShareBounds()
    reset: str = LATEST
    committed_only: bool = False
    renews: bool = True


def _number(least: int, most: int) -> Callable[[str], str | None]:
    def problem(value: str) -> str | None:
        fits = re.fullmatch(r"\d{1,9}", value) is not None and least <= int(value) <= most
        return None if fits else f"a whole number from {least} to {most}"

    return problem


def _one_of(*values: str) -> Callable[[str], str | None]:
    return lambda value: None if value in values else f"one of {', '.join(values)}"


def _reset(value: str) -> str | None:
    if value in {EARLIEST, LATEST} or duration_ms(value) is not None:
        return None
    return "earliest, latest, or by_duration: and a duration such as PT1H"


SETTINGS: Final[dict[str, Callable[[str], str | None]]] = {
    AUTO_OFFSET_RESET: _reset,
    DELIVERY_LIMIT: _number(2, 10),
    ISOLATION_LEVEL: _one_of("read_uncommitted", "read_committed"),
    MAX_LOCKS: _number(100, 10_000),
    LOCK_DURATION: _number(1_000, 3_600_000),
    RENEW: _one_of("true", "false"),
    **{f"{kind}.{HEARTBEAT_INTERVAL}": _number(100, 600_000) for kind in (CONSUMER, SHARE)},
    **{f"{kind}.{SESSION_TIMEOUT}": _number(500, 3_600_000) for kind in (CONSUMER, SHARE)},
}
"""What may be set, and what is wrong with a value."""


def check(name: str, value: str | None) -> None:
    """Raise InvalidRequestError where a group's setting cannot have this value; None: its default."""
    problem = SETTINGS.get(name)
    if problem is None:
        raise InvalidRequestError(
            f"{name!r} is no setting of one group here; there are {', '.join(sorted(SETTINGS))}"
        )
    wanted = None if value is None else problem(value)
    if wanted is not None:
        raise InvalidRequestError(f"{name} is {value!r}, and has to be {wanted}")


def valid(own: Mapping[str, str]) -> dict[str, str]:
    """What of a group's settings counts: what makes no sense by now is passed over."""
    return {name: value for name, value in own.items() if name in SETTINGS and SETTINGS[name](value) is None}


def members_from(kind: str, defaults: GroupBounds, own: Mapping[str, str]) -> GroupBounds:
    """What holds for the members of a group, of which this is set. `kind`: CONSUMER or SHARE."""
    told = valid(own)
    return defaults._replace(
        heartbeat_interval_ms=int(told.get(f"{kind}.{HEARTBEAT_INTERVAL}", defaults.heartbeat_interval_ms)),
        session_timeout_ms=int(told.get(f"{kind}.{SESSION_TIMEOUT}", defaults.session_timeout_ms)),
    )


def settings_from(defaults: ShareBounds, own: Mapping[str, str]) -> ShareSettings:
    """What holds for the records that a share group reads, of which this is set."""
    told = valid(own)
    return ShareSettings(
        ShareBounds(
            int(told.get(LOCK_DURATION, defaults.record_lock_duration_ms)),
            int(told.get(DELIVERY_LIMIT, defaults.delivery_count_limit)),
            int(told.get(MAX_LOCKS, defaults.partition_max_record_locks)),
        ),
        told.get(AUTO_OFFSET_RESET, LATEST),
        told.get(ISOLATION_LEVEL) == "read_committed",
        told.get(RENEW) != "false",
    )


def shown(defaults: ShareBounds, own: Mapping[str, str]) -> dict[str, str]:
    """The value of each setting."""
    found = settings_from(defaults, own)
    return {
        AUTO_OFFSET_RESET: found.reset,
        DELIVERY_LIMIT: str(found.bounds.delivery_count_limit),
        ISOLATION_LEVEL: "read_committed" if found.committed_only else "read_uncommitted",
        MAX_LOCKS: str(found.bounds.partition_max_record_locks),
        LOCK_DURATION: str(found.bounds.record_lock_duration_ms),
        RENEW: str(found.renews).lower(),
    }


def duration_ms(reset: str) -> int | None:
    """How long ago a group begins that has `by_duration:` and a duration; None: nothing of the kind."""
    if not reset.startswith(BY_DURATION):
        return None
    found = _DURATION.fullmatch(reset.removeprefix(BY_DURATION))
    if found is None or not any(found.groups()):
        return None
    return sum(int(found[unit] or 0) * ms for unit, ms in _IN_MS.items())
