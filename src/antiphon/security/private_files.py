"""Files and folders that only the user of a node may read."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


def write_private(file: Path, data: bytes) -> None:
    """Write a file that nobody else may read, so that a crash leaves the old one or the new one. Raises OSError."""
    temporary = file.with_name(file.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def replace_text(file: Path, text: str) -> None:
    """Replace a text file as a whole; nobody else may read it. Raises OSError with the file's name.

    One that says the same already is left, so that a full disk does not matter.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if file.read_text() == text:
            return
    temporary = file.with_name(file.name + ".new")
    try:
        with open(temporary, "w", opener=_private) as out:
            out.write(text)
        temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def private_folder(folder: Path) -> None:
    """Make a folder that nobody else may look into; one that is there already is left as it is. Raises OSError."""
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        except FileNotFoundError:  # as /proc answers, where nobody makes anything
            raise PermissionError(errno.EACCES, "no folder can be made there", str(folder)) from None


def only_private_files() -> None:
    """From now on nobody else may read what this process creates, whatever mode a library asks for."""
    os.umask(0o077)
