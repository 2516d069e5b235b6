"""Damaged manifests: RocksDB reads some for ever, so they are looked at before. No other byte of a store has it hang."""

import struct
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from crc32c import crc32c

from antiphon.errors import DamagedStoreError, StorageFailedError
from antiphon.table.rocks_manifest import BLOCK_BYTES, RECYCLED, _masked, recycled_record
from antiphon.table.rocks_store import RocksEngine


def record(kind: int, body: bytes = b"some bytes") -> bytes:
    return struct.pack("<IHB", _masked(crc32c(bytes([kind]) + body)), len(body), kind) + body


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    opened = RocksEngine().open(str(path))
    batch = opened.batch()
    batch.put(b"key", b"value")
    opened.write(batch)
    opened.flush()
    opened.close()
    return path


def manifest_of(store: Path) -> Path:
    (found,) = store.glob("MANIFEST-*")
    return found


def test_a_record_of_a_recycled_file_is_found_wherever_rocksdb_comes_across_it() -> None:
    sound = record(1) + record(2) + record(4)
    assert recycled_record(sound) is None
    assert recycled_record(sound + bytes(100)) is None
    assert recycled_record(sound + record(1)[:9]) is None, "a write that a crash cut off"
    for kind in RECYCLED:
        assert recycled_record(sound + record(kind)) == len(sound)
        assert recycled_record(sound + struct.pack("<IHB", 0, 60_000, kind)) == len(sound), "whatever its sum"
    broken = bytearray(sound)
    broken[10] ^= 1
    inside = bytes(broken) + record(5)
    assert recycled_record(inside) is None, "what follows a broken record is passed over"
    next_block = inside.ljust(BLOCK_BYTES, b"\0") + record(1)
    assert recycled_record(next_block) is None
    assert recycled_record(next_block + record(5)) == len(next_block)
    # Less room at the end of a block than a header takes is left empty.
    filled = record(1, bytes(BLOCK_BYTES - 7 - 3)) + bytes(3)
    assert recycled_record(filled + record(6)) == BLOCK_BYTES


@pytest.mark.parametrize("kind", sorted(RECYCLED))
def test_a_store_with_one_is_damaged_and_nobody_waits_for_it(store: Path, kind: int) -> None:
    with manifest_of(store).open("ab") as file:
        file.write(record(kind))
    for work in (RocksEngine().open, lambda path: list(RocksEngine().check(path))):
        with pytest.raises(DamagedStoreError, match="recycled"):
            work(str(store))


FLIPS = """
import sys
from pathlib import Path
from antiphon.errors import StorageFailedError
from antiphon.table.rocks_store import RocksEngine
store = Path(sys.argv[1])
name, = store.glob("MANIFEST-*")
sound = name.read_bytes()
for at in range(len(sound)):
    for bit in range(8):
        flipped = bytearray(sound)
        flipped[at] ^= 1 << bit
        name.write_bytes(flipped)
        try:
            for _ in RocksEngine().check(str(store)):
                pass
        except StorageFailedError:
            pass
        print(at, bit, flush=True)
"""


def test_no_flipped_bit_of_a_manifest_makes_rocksdb_read_for_ever(store: Path, tmp_path: Path) -> None:
    """In another process, which can be ended."""
    copy = tmp_path / "copy"
    copytree(store, copy)
    (copy / "LOCK").unlink()
    ran = subprocess.run(
        (sys.executable, "-c", FLIPS, str(copy)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    size = manifest_of(store).stat().st_size
    assert ran.stdout.split("\n")[-2] == f"{size - 1} 7"


def test_a_flipped_bit_of_current_is_damage_and_no_file_that_does_not_exist(store: Path) -> None:
    current = store / "CURRENT"
    sound = current.read_bytes()
    for at in range(len(sound)):
        for bit in range(8):
            flipped = bytearray(sound)
            flipped[at] ^= 1 << bit
            current.write_bytes(flipped)
            with pytest.raises(DamagedStoreError):
                RocksEngine().open(str(store))
    current.write_bytes(sound)
    RocksEngine().open(str(store)).close()


def test_a_manifest_that_is_not_there_is_damage(store: Path) -> None:
    manifest_of(store).unlink()
    for work in (RocksEngine().open, lambda path: list(RocksEngine().check(path))):
        with pytest.raises(DamagedStoreError, match="not there"):
            work(str(store))


def test_a_folder_that_cannot_be_read_is_a_failure_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST-000001").mkdir()
    with pytest.raises(StorageFailedError):
        RocksEngine().open(str(tmp_path))
