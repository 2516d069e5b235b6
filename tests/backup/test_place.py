"""What is said of a place for backups that cannot be used."""

from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from antiphon.backup.place import Place
from antiphon.errors import BackupError


class NoCredentialsError(Exception):
    """As the libraries of object stores have them: no OSError."""


class _Closed(MemoryFileSystem):  # type: ignore[misc]
    protocol = "closed"
    error: Exception = NoCredentialsError("no credentials")
    cachable = False

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        raise self.error

    def rm_file(self, path: str) -> None:
        raise self.error


@pytest.fixture
def place() -> Place:
    fsspec.register_implementation("closed", _Closed, clobber=True)
    return Place("closed://bucket/backups")


def test_what_an_object_stores_library_raises_is_a_refusal(place: Place) -> None:
    with pytest.raises(BackupError, match="manifests cannot be listed: no credentials"):
        place.names("manifests")
    with pytest.raises(BackupError, match="manifests/x cannot be removed: no credentials"):
        place.remove("manifests/x")


def test_a_bug_stays_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Closed, "error", KeyError("a bug"))
    with pytest.raises(KeyError):
        place.names("manifests")
