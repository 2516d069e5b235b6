"""Our own errors within Spark's: what fails in a planner or a task arrives as text, deep in a Java exception."""

import re
from typing import Final

from antiphon.errors import ERRORS, AntiphonError

_OURS: Final = re.compile(r"^\s*antiphon\.(?:\w+\.)*(\w+: .+)$", re.MULTILINE)


def our_error(text: str) -> str | None:
    """The last error of ours in the text of an exception, as `UnknownTopicError: there is no topic ...`, or None."""
    found = _OURS.findall(text)
    return found[-1].strip() if found else None


def error_class(ours: str) -> type[AntiphonError]:
    """The class of such an error, by its name."""
    name = ours.partition(":")[0]
    return next((one for one in ERRORS.values() if one.__name__ == name), AntiphonError)
