"""A place for backups in memory, whose files cannot be written or removed now and then, as those of an object store."""

import io
from collections.abc import Callable
from random import Random
from typing import Any

from antiphon.backup.place import Place


class MemoryPlace(Place):
    """`Place` with files that this process holds; `fails` of all writes and removals are refused."""

    def __init__(self, random: Random, fails: float) -> None:
        self.uri = "memory"
        self._root = ""
        self._is_local = False
        self._system = _Files(random, fails)

    @property
    def paths(self) -> set[str]:
        """Of all files."""
        return {path.removeprefix("/") for path in self._system.content}


class _Files:
    """As much of a file system of fsspec as `Place` uses."""

    def __init__(self, random: Random, fails: float) -> None:
        self.content: dict[str, bytes] = {}
        self._random = random
        self._fails = fails

    def invalidate_cache(self) -> None:
        """Nothing is cached."""

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Directories are what names of files begin with."""

    def ls(self, path: str, *, detail: bool) -> list[str]:  # noqa: ARG002 - fsspec's signature
        """Paths of what is directly in a directory."""
        begin = path + "/"
        found = {begin + one[len(begin) :].partition("/")[0] for one in self.content if one.startswith(begin)}
        if not found:
            raise FileNotFoundError(path)
        return sorted(found)

    def open(self, path: str, mode: str) -> io.BytesIO:
        """A file to read, or one that is there once it is closed."""
        if mode == "rb":
            if path not in self.content:
                raise FileNotFoundError(path)
            return io.BytesIO(self.content[path])
        self._may_fail()
        return _Written(lambda data: self.content.__setitem__(path, data))

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        self._may_fail()
        if self.content.pop(path, None) is None:
            raise FileNotFoundError(path)

    def _may_fail(self) -> None:
        if self._random.random() < self._fails:
            raise OSError("the place does not answer")


class _Written(io.BytesIO):
    """Bytes that are a file once they are complete."""

    def __init__(self, done: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._done = done

    def close(self) -> None:
        """The file is there now."""
        if not self.closed:
            self._done(self.getvalue())
        super().close()
