"""What readers open because a row of the archive's catalog says so, and what not."""

from typing import Final

import msgspec
import pytest

from antiphon.archive.format import ArchivedFile, decode_row, encode_row
from antiphon.archive.places import LOCATIONS_VARIABLE, location_problem
from antiphon.errors import ArchiveError
from antiphon.model.rows import Row, Version

ID: Final = "0123456789abcdef" * 2
NAME: Final = "00000000000000000005-00000000000000000009-1700000000000-0a1b2c3d.parquet"
BELOW: Final = f"flights-01234567/00003/{NAME}"
FILE: Final = ArchivedFile(
    format=1, topic="flights", topic_id=ID, shard=3, start=5, end=9, rows=3, controls=1, uri="",
    size_bytes=0, checksum="", digest="", earliest_ms=-1, latest_ms=-1, archived_ms=7,
)  # fmt: skip


def decoded(uri: str) -> str:
    file = msgspec.structs.replace(FILE, uri=uri)
    return decode_row(Row(file.key, encode_row(file), Version(0, 0, 0, 0))).uri


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCATIONS_VARIABLE, raising=False)


@pytest.mark.parametrize(
    "root", ["file:///mnt/a", "/mnt/a", "s3://bucket/a", "memory://x", "gs://b", "abfss://c@d/e"]
)
def test_files_as_the_archive_names_them_are_opened(root: str) -> None:
    assert decoded(f"{root}/{BELOW}") == f"{root}/{BELOW}"


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        f"http://169.254.169.254/{BELOW}",
        f"https://example.org/{BELOW}",
        f"simplecache::file:///mnt/{BELOW}",
        f"zip://x::http://example.org/{BELOW}",
        f"github://a:b@c/{BELOW}",
        f"file:///mnt/../etc/{BELOW}",
        f"s3://bucket/flights-01234567/00004/{NAME}",
        f"s3://bucket/other-01234567/00003/{NAME}",
        f"s3://bucket/flights-01234567/00003/{NAME.replace('09-1', '10-1')}",
        f"s3://bucket/flights-01234567/00003/{NAME}?versionId=1",
        f"s3://bucket/{BELOW}/x",
        NAME,
        "",
    ],
)
def test_nothing_else_is(uri: str) -> None:
    with pytest.raises(ArchiveError, match="is not opened"):
        decoded(uri)


def test_where_places_are_named_only_those_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCATIONS_VARIABLE, "s3://bucket/archive/ /mnt/a sftp://host/x")
    for root in ("s3://bucket/archive", "file:///mnt/a", "file:///mnt/a/b", "sftp://host/x"):
        assert decoded(f"{root}/{BELOW}")
    for root in ("s3://bucket/archive2", "s3://bucket", "file:///mnt", "sftp://host/y", "memory://x"):
        with pytest.raises(ArchiveError, match=LOCATIONS_VARIABLE):
            decoded(f"{root}/{BELOW}")
    with pytest.raises(ArchiveError):
        decoded("s3://bucket/archive/anything")
    assert location_problem("s3://bucket/archive/x") is None
    assert location_problem("s3://bucket/other/x")
