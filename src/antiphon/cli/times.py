"""Times as people write them in options."""

import re
import time
from typing import Annotated, Final

import typer

from antiphon.cli.output import usage
from antiphon.errors import InvalidRequestError

SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="From this time on: 2026-03-01T12:00:00Z (ISO 8601), or how long ago, such as 10m.",
    ),
]
UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def duration_ms(text: str, option: str) -> int:
    """A number with a unit, such as 7d."""
    found = _duration(text)
    if found is None:
        usage(f"{option} is a number with one of {', '.join(UNITS_MS)}, such as 7d, not {text!r}")
    return found


def since_ms(text: str) -> int:
    """A moment in ms since 1970: ISO 8601 (UTC where no zone is named), or how long ago it is."""
    from antiphon.spark.jobs.replay_cut import parse_time

    ago_ms = _duration(text)
    if ago_ms is not None:
        return max(0, int(time.time() * 1000) - ago_ms)
    try:
        return max(0, parse_time(text))
    except InvalidRequestError:
        usage(f"--since is a time such as 2026-03-01T12:00:00Z, or how long ago, such as 10m, not {text!r}")


def _duration(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)\s*([a-z]+)", text.strip(), re.ASCII)
    if match is None or match.group(2) not in UNITS_MS:
        return None
    return int(match.group(1)) * UNITS_MS[match.group(2)]
