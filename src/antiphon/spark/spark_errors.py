"""Our own errors within Spark's: what fails in a planner or a task arrives as text, deep in a Java exception."""

import re
from typing import Final

_OURS: Final = re.compile(r"^\s*antiphon\.(?:\w+\.)*(\w+: .+)$", re.MULTILINE)


def our_error(text: str) -> str | None:
    """The last error of ours in the text of an exception, as `UnknownTopicError: there is no topic ...`, or None."""
    found = _OURS.findall(text)
    return found[-1].strip() if found else None
