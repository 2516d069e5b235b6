"""Faults of the Kafka listeners of a running cluster: what is told to its nodes, and how much of it was used up."""

import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

Told = dict[str, Any]
"""What a node's listener does wrong, as `antiphon.kafka.listener_faults` reads it."""


class FaultyNode(Protocol):
    """A node whose listener can be told what to do wrong."""

    listener: Told

    def inject(self, *, listener: Told | None = None) -> None:
        """Replace what it was told; returns when it does so. Raises InvalidRequestError for what it refuses."""


class Fault:
    """Requests that are hit until `times` of them were, on all nodes together, or until `end()`."""

    def __init__(self, times: int, tally: Path, end: Callable[[], None]) -> None:
        self.times = times
        self._tally = tally
        self._end = end

    @property
    def used(self) -> int:
        """How many requests were hit so far."""
        return used(self._tally, self.times)

    @property
    def left(self) -> int:
        """How many still will be."""
        return self.times - self.used

    def end(self) -> None:
        """Hit no more of them. Harmless when it is over."""
        self._end()

    def __repr__(self) -> str:
        return f"<Fault, {self.used} of {self.times} used>"


class Tallies:
    """The files in which nodes count what they have hit, in a temporary directory of their own."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="antiphon-faults-"))

    def new(self) -> Path:
        """An empty one."""
        path = self._directory / secrets.token_hex(8)
        path.touch()
        return path

    def remove(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self._directory, ignore_errors=True)


def used(tally: Path, times: int) -> int:
    """How many requests a rule has hit: a byte for each, and a few more of nodes that came too late."""
    try:
        return min(times, tally.stat().st_size)
    except FileNotFoundError:
        return times


def with_rule(kind: str, rule: Told) -> Callable[[Told], Told]:
    """What adds a rule to those of a kind, without those that are used up."""

    def change(told: Told) -> Told:
        others = [one for one in told.get(kind, ()) if used(Path(one["tally"]), one["times"]) < one["times"]]
        return {**told, kind: [*others, rule]}

    return change


def without_rule(kind: str, rule: Told) -> Callable[[Told], Told]:
    """What takes it away."""

    def change(told: Told) -> Told:
        others = [one for one in told.get(kind, ()) if one["tally"] != rule["tally"]]
        rest = {name: what for name, what in told.items() if name != kind}
        return {**rest, kind: others} if others else rest

    return change


def with_entry(kind: str, name: str, value: Any) -> Callable[[Told], Told]:
    """What sets an entry of a kind, or takes it away: None."""

    def change(told: Told) -> Told:
        entries = {**told.get(kind, {}), name: value}
        kept = {one: what for one, what in entries.items() if what is not None}
        rest = {one: what for one, what in told.items() if one != kind}
        return {**rest, kind: kept} if kept else rest

    return change


def inject(nodes: Sequence[FaultyNode], change: Callable[[Told], Told]) -> None:
    """Change what the listeners of nodes do wrong; where one refuses, all are as before."""
    done: list[tuple[FaultyNode, Told]] = []
    try:
        for node in nodes:
            before = node.listener
            node.inject(listener=change(before))
            done.append((node, before))
    except BaseException:
        for node, before in done:
            node.inject(listener=before)
        raise
