"""Runs kept and fresh inputs of a target for a while, from a seed: what `make test` does, without any coverage."""

import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.fuzz.mutate import mutated
from tests.fuzz.target import Finding, Target, corpus_of, watched

FINDINGS_MAX = 20


class Ran(NamedTuple):
    """What a run did."""

    inputs: int
    findings: list[Finding]


def run_for(
    target: Target,
    name: str,
    seed: int,
    seconds: float,
    *,
    found: Callable[[Finding], None] | None = None,
    inputs_max: int = 1 << 60,
    findings_max: int = FINDINGS_MAX,
) -> Ran:
    """All kept inputs and the target's own ones, then changed ones until `seconds` are over; each place is told once."""
    rng = Random(f"{name} {seed}")
    ends_s = time.monotonic() + seconds
    kept = tuple(target.seeds()) + tuple(corpus_of(name))
    places: dict[str, Finding] = {}
    count = 0
    for data in kept:
        count += 1
        _note(places, watched(target, data, memory=True), found)
    while time.monotonic() < ends_s and count < inputs_max and len(places) < findings_max:
        count += 1
        _note(places, watched(target, mutated(rng.choice(kept or (b"",)), rng, kept)), found)
    return Ran(count, list(places.values()))


def _note(
    places: dict[str, Finding], finding: Finding | None, found: Callable[[Finding], None] | None
) -> None:
    if finding is not None and finding.place not in places:
        places[finding.place] = finding
        if found is not None:
            found(finding)
