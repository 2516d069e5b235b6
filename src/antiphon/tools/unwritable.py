"""What to do about a file that cannot be written."""

import errno
from typing import Final

WHAT_TO_DO: Final = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room, or have the quota raised,",
    errno.EROFS: "have that disk mounted for writing",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "end what holds so many files open",
}


def unwritable(error: OSError, where: str) -> str:
    """One line that says what to do about a file that could not be written; `where`, unless the error names the file."""
    place = error.filename or where
    return f"cannot write {place}: {error.strerror}; {WHAT_TO_DO.get(error.errno or 0, 'see to that')} and start again"
