"""Where backups are: a directory of any file system that fsspec knows, and a plain one without fsspec's extras.

Files are written once, under names that nobody else uses, and never changed; `prune` removes them. What a backup consists
of is said by its manifest, which is written last, so files that no manifest names are left over from a backup that did not
end.

A backup has all records and what proves users' passwords. So on a file system of this machine nobody but its owner may read
what is made; elsewhere the file system's own rights decide.
"""

import contextlib
import io
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xxhash import xxh3_128

from antiphon.archive.files import options_from_environment
from antiphon.archive.places import make_directory
from antiphon.errors import BackupError
from antiphon.security.private_files import FILE_MODE, FOLDER_MODE

READ_BYTES: Final = 4 * 1024 * 1024

Options = Mapping[str, Any]
"""Keyword arguments of an fsspec file system, such as credentials."""


class Place:
    """See the module's text. Paths of files are relative to it. All methods block, and raise BackupError."""

    def __init__(self, uri: str, options: Options | None = None) -> None:
        self.uri = uri
        try:
            import fsspec
        except ImportError as error:
            raise BackupError(
                "backups are written with fsspec, which is not installed: pip install 'antiphon[archive]'"
            ) from error
        given = options_from_environment() if options is None else dict(options)
        try:
            self._system, self._root = fsspec.core.url_to_fs(uri, **given)
        except (ImportError, ValueError, TypeError) as error:
            raise BackupError(f"cannot open {uri}: {error}") from error
        protocols = self._system.protocol
        self._is_local = "file" in ((protocols,) if isinstance(protocols, str) else protocols)

    def _path(self, path: str) -> str:
        if not path or path.startswith("/") or any(part in {"", ".", ".."} for part in path.split("/")):
            raise BackupError(f"{path[:200]!r} is no path of a file of a backup in {self.uri}")
        return f"{self._root.rstrip('/')}/{path}"

    @contextlib.contextmanager
    def _blamed(self, path: str, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            missing = "cannot be written, there is no such place" if doing == "written" else "is not there"
            raise BackupError(f"{self.uri}: {path} {missing}") from error
        except Exception as error:
            if not _is_a_refusal(error):
                raise
            raise BackupError(f"{self.uri}: {path} cannot be {doing}: {error}") from error

    def names(self, directory: str) -> list[str]:
        """Names of the files directly in a directory, sorted; none where there is no such directory."""
        with self._blamed(directory, "listed"):
            try:
                self._system.invalidate_cache()
                found = self._system.ls(self._path(directory), detail=False)
            except FileNotFoundError:
                return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, durably where the file system can."""
        with self.writing(path) as file:
            file.add(data)

    @contextlib.contextmanager
    def writing(self, path: str) -> "Iterator[Writing]":
        """Write a file in pieces. Where something goes wrong what was written is removed, as well as it goes."""
        full = self._path(path)
        with self._blamed(path, "written"):
            if self._is_local:
                _make_private(full)
            else:
                make_directory(self._system, full.rpartition("/")[0])
            try:
                with self._system.open(full, "wb") as handle:
                    file = Writing(handle)
                    yield file
                    _sync(handle)
            except BaseException:
                with contextlib.suppress(Exception):
                    self._system.rm_file(full)
                raise

    def read(self, path: str, size_bytes_max: int) -> bytes:
        """A small file, whole."""
        data = bytearray()
        with self._blamed(path, "read"), self._system.open(self._path(path), "rb") as handle:
            # Not at once: room for as many bytes as are asked for is taken before the first one is read.
            while piece := handle.read(min(READ_BYTES, size_bytes_max + 1 - len(data))):
                data += piece
        if len(data) > size_bytes_max:
            raise BackupError(f"{self.uri}: {path} is larger than {size_bytes_max} bytes")
        return bytes(data)

    def remove(self, path: str) -> bool:
        """Remove a file; False where there is none."""
        try:
            self._system.rm_file(self._path(path))
        except FileNotFoundError:
            return False
        except Exception as error:
            if not _is_a_refusal(error):
                raise
            raise BackupError(f"{self.uri}: {path} cannot be removed: {error}") from error
        return True

    def pieces(self, path: str, size_bytes: int, checksum: str) -> Iterator[bytes]:
        """A file in pieces. Raises BackupError at its end where it is not what was written: use none of it before."""
        hasher, size = xxh3_128(), 0
        with self._blamed(path, "read"), self._system.open(self._path(path), "rb") as handle:
            while data := bytes(handle.read(READ_BYTES)):
                size += len(data)
                if size > size_bytes:
                    break
                hasher.update(data)
                yield data
        if size != size_bytes or hasher.hexdigest() != checksum:
            raise BackupError(
                f"{self.uri}: {path} is damaged: {size} bytes with checksum {hasher.hexdigest()[:8]}, {size_bytes} with "
                f"{checksum[:8]} were written. Restore that file, or use another backup: `antiphon backup list "
                f"{shlex.quote(self.uri)}` shows them"
            )

    def check(self, path: str, size_bytes: int, checksum: str) -> None:
        """Read a file and compare it. Raises BackupError."""
        for _ in self.pieces(path, size_bytes, checksum):
            pass


def _is_a_refusal(error: Exception) -> bool:
    """Not a bug: also what object stores' own libraries raise, such as for credentials that are not there."""
    known = isinstance(error, OSError | ValueError | TypeError)
    return known or type(error).__module__.partition(".")[0] not in {"antiphon", "builtins"}


class Writing:
    """A file that is being written."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._hasher = xxh3_128()
        self.size_bytes = 0

    def add(self, data: bytes | memoryview) -> None:
        """Write more."""
        self._handle.write(data)
        self._hasher.update(data)
        self.size_bytes += len(data)

    @property
    def checksum(self) -> str:
        """XXH3-128 of what was written."""
        return self._hasher.hexdigest()


def _make_private(file: str) -> None:
    """Make an empty file, and the directories above it that are missing, for their owner only."""
    _make_private_directory(os.path.dirname(file))
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def _make_private_directory(path: str) -> None:
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        pass
    except FileNotFoundError:
        _make_private_directory(os.path.dirname(path))
        os.mkdir(path, FOLDER_MODE)


def _sync(handle: Any) -> None:
    """To the disk, where it is a file of this machine."""
    with contextlib.suppress(AttributeError, io.UnsupportedOperation, TypeError):
        number = handle.fileno()
        handle.flush()
        os.fsync(number)
