"""Manifests: what is refused, and with which words."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from xxhash import xxh3_128

from antiphon.backup import manifest
from antiphon.backup.manifest import Backup, CutReport, Piece, ShardBackup, State, StoredFile, TopicBackup
from antiphon.backup.place import Place
from antiphon.errors import BackupError, NewerFormatError

NAME = "20260301T120000Z-0123abcd"
SUM = xxh3_128(b"").hexdigest()


def shard(shard_id: int, *pieces: tuple[int, int], **fields: Any) -> ShardBackup:
    made = tuple(Piece(f"logs/{shard_id}/{a}.log", a, b, 0, SUM, 1) for a, b in pieces)
    plain = ShardBackup(shard_id, 0, 1, 0, pieces[-1][1] if pieces else 0, made)
    return msgspec.structs.replace(plain, **fields)


def backup(*shards: ShardBackup, **fields: Any) -> Backup:
    topic = TopicBackup("t", "00" * 16, "topic", 1, "oxia", {}, False, shards)
    plain = Backup(NAME, "c", "1", 0, 0, CutReport(0, 0, 0.0, 1, 0.0), shard(0, (0, 5)), (topic,))
    return msgspec.structs.replace(plain, **fields)


def state(offset: int, *names: str) -> State:
    return State(1, offset, tuple(StoredFile(name, f"states/1/{name}", 0, SUM, 0) for name in names))


def test_what_was_saved_is_found(place: Place) -> None:
    assert manifest.names_in(place) == []
    with pytest.raises(BackupError, match=r"there is no backup in .*antiphon backup create"):
        manifest.load(place)
    older = backup(name="20260228T120000Z-0123abcd")
    made = backup(shard(1, (0, 3), (3, 9)), shard(2, (4, 9), state=state(6, "a.sst"), start=6))
    manifest.save(place, made)
    manifest.save(place, older)
    assert manifest.names_in(place) == [older.name, NAME]
    assert manifest.load(place) == made
    assert manifest.load(place, older.name) == older
    assert made.topic("t").shards[0].end == 9
    with pytest.raises(BackupError, match=r"no topic or table 'x'.*antiphon backup show"):
        made.topic("x")


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (backup(shard(1, (0, 3), (4, 9))), "do not follow each other at 3"),
        (backup(shard(1, (2, 9))), "has nothing from 0 to 2"),
        (backup(shard(1, (0, 9), end=10)), "ends at 9, not at 10"),
        (backup(shard(1, (0, 9), start=11)), "ends at 9"),
        (backup(shard(1, (0, 0))), "do not follow each other"),
        (backup(shard(1, (7, 9), state=state(6, "a"))), "has nothing from 6 to 7"),
        (backup(shard(1, state=state(6, "a"))), "has nothing from 6"),
        (backup(shard(1, (0, 9), state=state(6, "../../etc/passwd"))), "is no name of a file"),
        (backup(shard(1, (0, 9), state=state(6, ".."))), "is no name of a file"),
        (backup(shard(1, (0, 9)), shard(1, (0, 9))), "are there twice"),
        (backup(shard(0, (0, 9))), "are there twice"),
        (backup(cluster=shard(1, (0, 9))), "are there twice"),
        (backup(name="20260302T120000Z-0123abcd"), "another name inside"),
    ],
)
def test_contradictions_are_refused(place: Place, made: Backup, problem: str) -> None:
    body = msgspec.json.encode(made)
    text = {"format": 1, "checksum": xxh3_128(body).hexdigest(), "backup": msgspec.Raw(body)}
    place.write(f"manifests/{NAME}.json", msgspec.json.encode(text))
    with pytest.raises(BackupError, match=problem):
        manifest.load(place, NAME)


def test_damage_and_what_is_no_manifest(place: Place) -> None:
    manifest.save(place, backup())
    file = Path(place.uri) / "manifests" / f"{NAME}.json"
    good = file.read_bytes()
    for bad in (
        good[:-1],
        good.replace(b'"cluster_id":"c"', b'"cluster_id":"d"'),
        b"",
        b"[]",
        b"\xff",
        b"{" * 5000,
    ):
        file.write_bytes(bad)
        with pytest.raises(BackupError, match=r"damaged|no manifest"):
            manifest.load(place)
    file.write_text(json.dumps(json.loads(good) | {"format": 2}))
    with pytest.raises(NewerFormatError, match="format 2"):
        manifest.load(place)
    for name in ("../x", "latest/..", "", NAME.upper()):
        with pytest.raises(BackupError, match="no name of a backup"):
            manifest.load(place, name)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a"])
def test_no_path_leads_out_of_the_place(place: Place, path: str) -> None:
    with pytest.raises(BackupError, match="no path of a file"):
        place.read(path, 10)


def test_files_of_a_place(place: Place, tmp_path: Path) -> None:
    with place.writing("a/b") as file:
        file.add(b"12")
        file.add(memoryview(b"3"))
    assert b"".join(place.pieces("a/b", 3, file.checksum)) == b"123"
    for size, checksum in ((2, file.checksum), (4, file.checksum), (3, SUM)):
        with pytest.raises(BackupError, match=r"is damaged.*antiphon backup list"):
            place.check("a/b", size, checksum)
    with pytest.raises(BackupError, match="is not there"):
        place.check("a/c", 3, SUM)
    with pytest.raises(BackupError, match="larger than 2 bytes"):
        place.read("a/b", 2)
    with pytest.raises(BackupError, match="cannot be written"), place.writing("a/d") as file:
        file.add(None)  # type: ignore[arg-type]  # a piece that cannot be written
    assert place.names("a") == ["b"], "what was not finished is gone"
    with pytest.raises(BackupError, match="cannot open"):
        Place("nosuchscheme://x")
    memory = Place("memory://some/where")
    memory.write("x/y", b"z")
    assert memory.names("x") == ["y"]


def test_a_new_name_is_behind_all_that_are_there() -> None:
    """Also within one second, and where the clock was set back."""
    names = [manifest.new_name()]
    for _ in range(20):
        names.append(manifest.new_name(names))
    assert names == sorted(names)
    late = "29991231T235959Z-ffffffff"
    assert manifest.new_name([names[0], late]).startswith("30000101T000000Z-")
    for odd in ("99999999T999999Z-ffffffff", "99991231T235959Z-ffffffff"):
        assert manifest.new_name([odd])


def test_what_a_backup_makes_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        place = Place(str(tmp_path / "deep" / "place"))
        place.write("logs/0/a.log", b"records")
        place.write("logs/0/a.log", b"again")
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")
    }
    assert modes == {
        "deep": 0o700, "deep/place": 0o700, "deep/place/logs": 0o700, "deep/place/logs/0": 0o700,
        "deep/place/logs/0/a.log": 0o600,
    }  # fmt: skip
    assert place.read("logs/0/a.log", 10) == b"again"
