"""That the fuzzers find mistakes, and what is kept. The targets themselves run in the files beside this one."""

import math
import os
from pathlib import Path
from random import Random

import pytest

from antiphon.kafka import primitives
from antiphon.records import compression
from antiphon.wire import frames
from tests.fuzz import keep, run, short_run, test_decoders, test_files, test_listeners
from tests.fuzz.engine import run_for
from tests.fuzz.mutate import INPUT_BYTES_MAX, mutated
from tests.fuzz.registry import TARGETS, make
from tests.fuzz.target import CORPUS, FindingError, Target, corpus_of, watched
from tests.fuzz.targets.large import LARGE_BYTES_MAX, large_input
from tests.fuzz.targets.nodes import messages_of

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning"),
]

CORPUS_BYTES_MAX = 400 * 1024


def test_what_is_kept_is_small() -> None:
    kept = [file for file in CORPUS.rglob("*") if file.is_file()]
    assert len(kept) > 100
    assert sum(file.stat().st_size for file in kept) < CORPUS_BYTES_MAX
    assert {file.parent.name for file in kept} == set(TARGETS)


def test_each_target_runs_in_one_of_the_files() -> None:
    """Each file is one process of `make test`, and takes a share of its minute."""
    files = (test_decoders.NAMES, test_files.NAMES, test_listeners.NAMES)
    assert sorted(name for names in files for name in names) == sorted(TARGETS)
    assert 55 < short_run.SECONDS * len(TARGETS) < 70 or "FUZZ_TEST_S" in os.environ


@pytest.mark.parametrize("name", test_listeners.NAMES)
def test_listeners_get_megabytes(name: str) -> None:
    if name == "peer-messages":
        return  # the nodes are believed; their messages are as large as they say
    inputs = make(name).seeds()
    sizes = [sum(map(len, messages_of(data))) for data in inputs]
    assert max(map(len, inputs)) < 200
    assert max(sizes) > 1_500_000
    assert max(sizes) <= LARGE_BYTES_MAX + 200


def test_a_piece_is_repeated_within_bounds() -> None:
    data = large_input(0, b"abcde", 3, 1, 2)
    assert messages_of(data) == [b"abcbcbcde"]
    assert messages_of(large_input(0, b"_ab", 1 << 31, 1, 2))[0].startswith(b"_abab")
    assert len(messages_of(large_input(0, b"_ab", 1 << 31, 1, 2))[0]) in range(
        LARGE_BYTES_MAX - 4, LARGE_BYTES_MAX + 1
    )
    for short in (b"\x04", b"\x04\xff\xff", large_input(0, b"", 9, 9, 9), large_input(0, b"a", 9, 9, 9)):
        assert sum(map(len, messages_of(short))) <= 4


def test_what_goes_a_new_way_is_kept() -> None:
    target = make("rocks-manifest")
    seeds = target.seeds()
    assert not keep.chosen(target, [], seeds)
    assert len(keep.chosen(target, [], [b"", b"", *seeds])) <= 1


def test_changes_are_made_of_a_seed_and_are_many() -> None:
    kept = tuple(corpus_of("kafka-requests"))
    made = [mutated(kept[0], Random(seed), kept) for seed in range(300)]
    assert made == [mutated(kept[0], Random(seed), kept) for seed in range(300)]
    assert len(set(made)) > 250
    assert max(map(len, made)) <= INPUT_BYTES_MAX


def hunted(name: str, inputs: int = 4000) -> list[str]:
    """The first place that is found with a mistake in the product; it goes by inputs, whatever else the machine does."""
    target = make(name)
    try:
        ran = run_for(target, name, 7, math.inf, inputs_max=inputs, findings_max=1)
        return [finding.place for finding in ran.findings]
    finally:
        target.close()


def test_a_bound_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the length of a field in a Kafka request is not held against what is left."""

    def take(self: primitives.Reader, size: int) -> memoryview:
        start, self.position = self.position, self.position + size
        return self.buffer[start : self.position]

    monkeypatch.setattr(primitives.Reader, "take", take)
    assert hunted("kafka-requests")


def test_a_frame_that_depends_on_how_the_stream_is_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: what comes of a frame that has begun to arrive is kept, and not counted."""
    monkeypatch.setattr(frames.FrameDecoder, "_join", lambda self, data: self._parts.append(data))
    assert hunted("native-messages")


def test_memory_beyond_the_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: lz4 and zstd take all that they may unpack to at once."""
    monkeypatch.setattr(compression, "_FIRST_READ_BYTES", 64 * 1024 * 1024)
    assert any(place.startswith("FindingError") for place in hunted("compressed", 40))


class Slow(Target):
    """Takes long for one input, and longer for another."""

    slow_s = 0.05

    def run(self, data: bytes) -> None:
        for _ in range({b"slow": 10_000_000, b"endless": 1 << 60}.get(data, 1)):
            pass


def test_what_is_slow_and_what_never_ends_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.target.HANG_S", 0.5)
    assert watched(Slow(), b"") is None
    for data in (b"slow", b"endless"):
        finding = watched(Slow(), data)
        assert finding is not None
        assert "CPU time" in finding.text()


class Broken(Target):
    """Fails for what contains a byte."""

    def seeds(self) -> list[bytes]:
        return [bytes(8)]

    def run(self, data: bytes) -> None:
        if b"\xff" in data:
            raise FindingError("there it is")


def test_a_finding_is_kept_and_repeated_by_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "make", lambda _: Broken())
    outcome = run.unguided("batches", 0.5, 1, tmp_path / "batches")
    (file,) = outcome.findings
    assert b"\xff" in file.read_bytes()
    assert run.repeat(file) == 1
    assert "there it is" in capsys.readouterr().out
    file.write_bytes(b"")
    assert run.repeat(file) == 0
