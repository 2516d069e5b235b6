"""A folder on any file system that fsspec knows: what lake jobs keep files in, and what they rest on.

Two things are asked of a file system beyond reading and writing. `create` must let one of two writers win; local disks do it
with a hard link, others through fsspec's exclusive mode. `move` must not lose the file when it is cut short.
"""

import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from antiphon.archive.places import make_directory
from antiphon.errors import InvalidRequestError

LOCAL: Final = "file://"
CREATE_TRIES: Final = 10
PAUSE_S: Final = 0.05
# Codes of S3 for an exclusive write: somebody has the name; and nobody has it yet, since another write of it is under way.
TAKEN: Final = frozenset({"PreconditionFailed", "412"})
UNDECIDED: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class FileInfo(NamedTuple):
    """A file of a folder: its name (relative to the folder), size and time of last change (ms since 1970, 0: unknown)."""

    name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True)
class Folder:
    """A folder by its URL. Travels to Spark's tasks; `options` are fsspec's for the URL's protocol."""

    url: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def at(cls, path: str, options: dict[str, Any] | None = None) -> "Folder":
        """From a path of this machine or a URL; raises InvalidRequestError where no file system of that kind is known."""
        if not path.strip():
            raise InvalidRequestError("the path of a lake table is empty")
        if path.startswith("file:"):
            path = "/" + path.removeprefix("file:").lstrip("/")
        if "://" not in path:
            return cls(LOCAL + os.path.abspath(os.path.expanduser(path)), dict(options or {}))
        folder = cls(path.rstrip("/"), dict(options or {}))
        try:
            folder._fs()
        except (ImportError, ValueError, OSError) as error:
            raise InvalidRequestError(
                f"{path} cannot be used: {error}; is fsspec's package for it installed?"
            ) from error
        return folder

    @property
    def local_path(self) -> Path | None:
        """The path, where it is one of this machine."""
        return Path(self.url.removeprefix(LOCAL)) if self.url.startswith(LOCAL) else None

    def child(self, name: str) -> "Folder":
        """A folder within."""
        return Folder(f"{self.url}/{name}", self.options)

    def url_of(self, name: str) -> str:
        """A file's URL."""
        return f"{self.url}/{name}"

    def exists(self, name: str = "") -> bool:
        """Is there a file or folder of that name?"""
        fs, root = self._fs()
        return bool(fs.exists(f"{root}/{name}" if name else root))

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is none."""
        fs, root = self._fs()
        try:
            found: bytes = fs.cat_file(f"{root}/{name}")
        except FileNotFoundError:
            return None
        return found

    def open_read(self, name: str) -> Any:
        """A file, seekable."""
        fs, root = self._fs()
        return fs.open(f"{root}/{name}", "rb")

    def open_write(self, name: str) -> Any:
        """A new file to write to; its folder is made, where the file system has any."""
        fs, path = self._place_for(name)
        return fs.open(path, "wb")

    def _place_for(self, name: str) -> tuple[Any, str]:
        """The file system, and the path of a file in it, whose folder is made."""
        fs, root = self._fs()
        path = f"{root}/{name}"
        make_directory(fs, path.rpartition("/")[0])
        return fs, path

    def create(self, name: str, data: bytes) -> bool:
        """Write a whole file unless there is one: whoever comes first has it. False: somebody did.

        Raises InvalidRequestError where the file system takes nothing, as a bucket does that is not there.
        """
        local = self.local_path
        if local is not None:
            return _create_local(local / name, data)
        with usable(self.url):
            return _create_remote(*self._place_for(name), data)

    def files(self, name: str = "") -> list[FileInfo]:
        """Files right within the folder, or within a folder of it, by name; none where there is no such folder."""
        fs, root = self._fs()
        path = f"{root}/{name}" if name else root
        try:
            found = fs.ls(path, detail=True, refresh=True)
        except FileNotFoundError:
            return []
        prefix = f"{name}/" if name else ""
        return sorted(
            FileInfo(
                prefix + str(entry["name"]).rstrip("/").rpartition("/")[2],
                int(entry.get("size") or 0),
                _changed_ms(entry),
            )
            for entry in found
            if entry.get("type") == "file"
        )

    def move(self, name: str, to: str) -> None:
        """Rename a file; nothing happens where it was moved before. Its new folder is made."""
        _, root = self._fs()
        fs, target = self._place_for(to)
        try:
            if self.local_path is not None:
                os.replace(f"{root}/{name}", target)
            else:  # `mv` of fsspec would take characters of the path for a pattern
                fs.cp_file(f"{root}/{name}", target)
                fs.rm_file(f"{root}/{name}")
        except FileNotFoundError:
            if not fs.exists(target):
                raise

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        fs, root = self._fs()
        try:
            fs.rm_file(f"{root}/{name}")
        except FileNotFoundError:
            return

    def _fs(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.url, **self.options)
        return fs, root.rstrip("/")


def file_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of fsspec among those of a target: all of `storage` but what is for `deltalake`."""
    return {name: value for name, value in dict(options.get("storage") or {}).items() if name != "delta"}


@contextmanager
def usable(url: str) -> Iterator[None]:
    """What the libraries say of a place that cannot be reached, or is not there, as InvalidRequestError in one line."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        said = " ".join(_COLOURS.sub("", str(error)).split())
        raise InvalidRequestError(f"{url} cannot be used: {said or type(error).__name__}") from error


def _create_remote(fs: Any, path: str, data: bytes) -> bool:
    for left in reversed(range(CREATE_TRIES)):
        try:
            fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            code = _code(error)
            if code in TAKEN:
                return False
            if code not in UNDECIDED or not left:
                raise
            time.sleep(PAUSE_S)
            continue
        except (RuntimeError, ValueError, TypeError):  # a file system without it: one writer at a time
            if fs.exists(path):
                return False
            fs.pipe_file(path, data)
        return True
    return False


def _code(error: OSError) -> str:
    """What a store that speaks S3 calls it; empty where it said nothing."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _create_local(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        return True
    finally:
        draft.unlink(missing_ok=True)


def _changed_ms(entry: dict[str, Any]) -> int:
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = entry.get(name)
        if value is None:
            continue
        if hasattr(value, "timestamp"):
            return int(value.timestamp() * 1000)
        if isinstance(value, int | float):
            return int(value * 1000)
    return 0
