"""Regular expressions of clients.

They are RE2's, as Kafka's are: the time that a match takes rises with the length of a name and no faster, whatever the
expression.
"""

from typing import Any, Final

import re2

REGEX_BYTES_MAX: Final = 1_024
REGEX_MEMORY_BYTES: Final = 1 << 20  # that an expression may take
SHOWN_CHARACTERS: Final = 100


class BadRegexError(ValueError):
    """An expression that RE2 does not take, or that is too long."""


def compiled(regex: str, memory_bytes: int = REGEX_MEMORY_BYTES) -> Any:
    """An expression, to be asked for `fullmatch(name)`. Raises BadRegexError, whose words are short."""
    if len(regex.encode()) > REGEX_BYTES_MAX:
        raise BadRegexError(f"a regular expression has {REGEX_BYTES_MAX:,} bytes at most")
    options = re2.Options()
    options.max_mem = memory_bytes
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown"
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadRegexError(
            f"{regex[:SHOWN_CHARACTERS]!r} is not a regular expression of RE2: {told[:SHOWN_CHARACTERS]}"
        ) from error
