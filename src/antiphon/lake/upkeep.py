"""Keep lake tables in shape: join small files, and remove what nobody reads any more. Beside running mirrors, too."""

import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.mirror import CHANGES
from antiphon.lake.plans import BAD, any_older
from antiphon.lake.targets.target import Compacted, Expired, Target, opened

TARGET_MB_DEFAULT: Final = 128
AGE_DEFAULT: Final = "7 days"
AGE_MIN: Final = timedelta(hours=1)  # an epoch's files are younger than that when they are committed
_AGE: Final = re.compile(r"\s*(\d+)\s*(second|minute|hour|day|week)s?\s*")


def compact(target: str | Mapping[str, Any] | Target, *, target_mb: int = TARGET_MB_DEFAULT) -> Compacted:
    """Replace a table's small files by ones of about `target_mb` MiB. Rows, and what mirrors know, stay as they are.

        compact("delta:/lake/flights")  # -> Compacted(removed=240, added=3)

    Raises TargetConflictError where writers that change the same files always come first; nothing has changed then.
    """
    if target_mb < 1:
        raise InvalidRequestError(f"target_mb has to be at least 1, not {target_mb}")
    with opened(target) as lake:
        _check_there(lake)
        return lake.compact(target_mb * 1024 * 1024)


def expire(
    target: str | Mapping[str, Any] | Target,
    older_than: str | timedelta = AGE_DEFAULT,
    *,
    force: bool = False,
) -> Expired:
    """Remove files that only readers of old versions need, and those that a job left when it died.

        expire("delta:/lake/flights", "7 days")  # -> Expired(files=240)

    Args:
        target: the table.
        older_than: an age, such as `7 days`; readers of versions that are that old fail afterwards.
        force: allow less than an hour, which may take files from an epoch that is under way.

    Raises:
        InvalidRequestError: the age is too low.
        TargetConflictError: a mirror was stopped within an epoch so long ago that its files would go.
    """
    age = parse_age(older_than)
    if age < AGE_MIN and not force:
        raise InvalidRequestError(
            f"older_than is {age}, less than an hour: files of an epoch under way would go. Stop all jobs and force it"
        )
    with opened(target) as lake:
        _check_there(lake)
        return _expire(lake, age)


def _expire(lake: Target, age: timedelta) -> Expired:
    now_ms = time.time_ns() // 1_000_000
    before_ms = now_ms - int(age.total_seconds() * 1000)
    if any_older(lake.meta, before_ms + int(AGE_MIN.total_seconds() * 1000)):
        raise TargetConflictError(
            f"{lake.folder.url}: a mirror was stopped within an epoch, whose files would go: run it once, then expire"
        )
    removed = lake.expire(before_ms).files
    for name in (BAD, CHANGES):
        for info in lake.meta.files(name):
            if info.modified_ms < before_ms:
                lake.meta.delete(info.name)
                removed += 1
    return Expired(removed)


def _check_there(lake: Target) -> None:
    if lake.check() is None:
        raise InvalidRequestError(f"there is no {lake.kind} table at {lake.folder.url}")


def parse_age(text: str | timedelta) -> timedelta:
    """`7 days`, `90 minutes`, ...; raises InvalidRequestError."""
    if isinstance(text, timedelta):
        return text
    found = _AGE.fullmatch(text)
    if found is None:
        raise InvalidRequestError(f"an age is a number and a unit, such as 7 days or 36 hours, not {text!r}")
    return timedelta(**{f"{found[2]}s": int(found[1])})
