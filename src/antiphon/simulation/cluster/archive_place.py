"""Where a simulated archive is: files in memory, which cannot be read now and then."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

SCHEME: Final = "simulated"


class _Written(io.BytesIO):
    """A file that is there when it is closed."""

    def __init__(self, place: "ArchivePlace", path: str) -> None:
        super().__init__()
        self._place = place
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self._place.files[self._path] = self.getvalue()
        super().close()


class ArchivePlace:
    """A file system, as far as `archive.files` and `archive.writer` use one. Opening a file fails with a chance, and one
    that is read has a flipped bit with another.
    """

    def __init__(self, draw: Random, fails: float, damages: float) -> None:
        self.files: dict[str, bytes] = {}
        self.is_sound = False
        self._fails, self._damages = fails, damages
        self._draw = draw

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Nothing fails meanwhile."""
        before, self.is_sound = self.is_sound, True
        try:
            yield
        finally:
            self.is_sound = before

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """There are no directories."""

    def open(self, path: str, mode: str) -> io.BytesIO:
        """A file to write, or to read."""
        if mode == "wb":
            return _Written(self, path)
        if not self.is_sound and self._draw.random() < self._fails:
            raise TimeoutError(f"{path} cannot be read now")
        data = self.files.get(path)
        if data is None:
            raise FileNotFoundError(path)
        if not self.is_sound and self._draw.random() < self._damages:
            at = self._draw.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << self._draw.randrange(8)]) + data[at + 1 :]
        return io.BytesIO(data)
