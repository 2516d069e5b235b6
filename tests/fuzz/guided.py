"""One target under atheris, which leads the inputs by the coverage of the product's code. A process of its own.

    python -m tests.fuzz.guided TARGET SECONDS SEED FOLDER

New inputs that reach new code go to FOLDER/corpus, findings to FOLDER/findings; each place is told once, and the run goes
on behind it. Prints libFuzzer's own lines. What ends the process itself (a crash in compiled code, a hang there) leaves
its input in FOLDER/findings too.
"""

import sys
from pathlib import Path
from random import Random

import atheris

from tests.fuzz.mutate import INPUT_BYTES_MAX, mutated
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import Target, corpus_of, name_of, watched

# Compiled by numba, which cannot compile what atheris adds; the simulator itself is not what is looked at.
NOT_INSTRUMENTED = [
    "antiphon.records.arrow_memory",
    "antiphon.records.effect_kernels",
    "antiphon.records.walk_kernels",
    "antiphon.records.arrow_decode_kernels",
    "antiphon.records.arrow_encode_kernels",
    "antiphon.records.arrow_hash_kernels",
    "antiphon.simulation",
]
HANG_S = 60
RESIDENT_MIB_MAX = 2048
OWN_SHARE = 0.5  # of the changes: by our rules, the others by libFuzzer's


class Guided:
    """What libFuzzer calls."""

    def __init__(self, target: Target, findings: Path) -> None:
        self._target = target
        self._findings = findings
        self._places: set[str] = set()
        self._kept: tuple[bytes, ...] = ()

    def begin(self, kept: "tuple[bytes, ...]") -> None:
        """Take pieces of these inputs into others."""
        self._kept = kept

    def one(self, data: bytes) -> None:
        """Run an input."""
        finding = watched(self._target, data)
        if finding is None or finding.place in self._places:
            return
        self._places.add(finding.place)
        file = self._findings / name_of(data)
        file.write_bytes(data)
        file.with_suffix(".txt").write_text(finding.text())
        print(f"FINDING {file} {finding.place}", flush=True)

    def change(self, data: bytes, max_size: int, seed: int) -> bytes:
        """Another input from this one."""
        rng = Random(seed)
        if rng.random() < OWN_SHARE:
            return mutated(data, rng, self._kept)[:max_size]
        return bytes(atheris.Mutate(data, max_size))


def main() -> None:
    """Entry point."""
    name, seconds, seed, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    if name not in TARGETS:
        sys.exit(f"no target {name!r}; there are {', '.join(TARGETS)}")
    corpus, findings = folder / "corpus", folder / "findings"
    for place in (corpus, findings):
        place.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["antiphon"], exclude=NOT_INSTRUMENTED):
        from tests.fuzz.registry import make

        target = make(name)
    kept = (*target.seeds(), *corpus_of(name))
    for data in kept:
        (corpus / name_of(data)).write_bytes(data)
    guided = Guided(target, findings)
    guided.begin(kept)
    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={RESIDENT_MIB_MAX}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], guided.one, custom_mutator=guided.change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
