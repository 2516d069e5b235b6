"""Regular expressions of clients.

They are RE2's, as Kafka's are: the time that a match takes rises with the length of a name and no faster, whatever the
expression. It also rises with the size of the expression's program: up to a step for each of its instructions and each byte
of a name, where RE2 cannot keep the states that it meets. A kilobyte of text can make 8,000 instructions. So their number is
bounded too, and `cost` says how many steps names may take.
"""

from collections.abc import Iterable
from typing import Any, Final

import re2

REGEX_BYTES_MAX: Final = 1_024
REGEX_MEMORY_BYTES: Final = 1 << 20  # that an expression may take
# Instructions; ordinary expressions have 20 to 100, one that says `.{1,100}` has 900
PROGRAM_MAX: Final = 1_000
SHOWN_CHARACTERS: Final = 100


class BadRegexError(ValueError):
    """An expression that RE2 does not take, or that would take too much time."""


def compiled(regex: str, memory_bytes: int = REGEX_MEMORY_BYTES) -> Any:
    """An expression, to be asked for `fullmatch(name)`. Raises BadRegexError, whose words are short."""
    if len(regex.encode()) > REGEX_BYTES_MAX:
        raise BadRegexError(f"a regular expression has {REGEX_BYTES_MAX:,} bytes at most")
    options = re2.Options()
    options.max_mem = memory_bytes
    options.log_errors = False
    try:
        found = re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown"
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadRegexError(
            f"{regex[:SHOWN_CHARACTERS]!r} is not a regular expression of RE2: {told[:SHOWN_CHARACTERS]}"
        ) from error
    if found.programsize > PROGRAM_MAX:
        raise BadRegexError(
            f"{regex[:SHOWN_CHARACTERS]!r} comes to {found.programsize:,} steps for each letter, {PROGRAM_MAX:,} are taken: "
            "repeat less in it"
        )
    return found


def cost(pattern: Any, names: Iterable[str]) -> int:
    """Steps that the matches of these names may take, of about 40 ns of a core; mostly it is a hundredth of that."""
    size: int = pattern.programsize
    return size * sum(len(name) + 1 for name in names)
