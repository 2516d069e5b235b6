"""Keeps small inputs that reach what the seeds do not: `python -m tests.fuzz.keep FOLDER [TARGET...]`.

FOLDER is what a run of `make fuzz` has left. Of a target's inputs there, the smallest ones come first, and one is kept
where it goes from a line of our code to another one that no input before it has gone. They go to `corpus/`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.fuzz.registry import TARGETS, make
from tests.fuzz.target import CORPUS, Target, corpus_of, name_of, watched

INPUT_BYTES_MAX: Final = 2048
KEPT_MAX: Final = 24  # of a target
OURS: Final = "/src/antiphon/"
Step = tuple[str, int, int]


@contextmanager
def stepping(steps: set[Step]) -> Iterator[None]:
    """While this is open, steps from line to line of our code are noted."""

    def line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            steps.add((frame.f_code.co_filename, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        return line

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return line if OURS in frame.f_code.co_filename else None

    last: dict[FrameType, int] = {}
    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


def steps_of(target: Target, data: bytes) -> set[Step]:
    """Where an input goes; nowhere where it is a finding."""
    steps: set[Step] = set()
    with stepping(steps):
        finding = watched(target, data)
    return set() if finding is not None else steps


def chosen(target: Target, kept: list[bytes], found: list[bytes]) -> list[bytes]:
    """Those of `found` that are worth keeping beside what is kept."""
    known: set[Step] = set()
    for data in (*target.seeds(), *kept):
        known |= steps_of(target, data)
    worth: list[bytes] = []
    for data in sorted(found, key=lambda one: (len(one), one)):
        steps = steps_of(target, data) if len(data) <= INPUT_BYTES_MAX and len(worth) < KEPT_MAX else set()
        if steps - known:
            known |= steps
            worth.append(data)
    return worth


def main() -> None:
    """Entry point."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    for name in names:
        found = [file.read_bytes() for file in sorted((folder / name / "corpus").glob("*"))]
        target = make(name)
        try:
            worth = chosen(target, corpus_of(name), found)
        finally:
            target.close()
        for data in worth:
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            (CORPUS / name / name_of(data)).write_bytes(data)
        print(f"{name}: {len(worth)} of {len(found)} kept, {sum(map(len, worth))} bytes", flush=True)


if __name__ == "__main__":
    main()
