"""One event at a time, and news only afterwards."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.invariants import InvariantError
from antiphon.partition.steps import Steps


class Said:
    """An action: it is written down."""

    def __init__(self, word: str) -> None:
        self.word = word


class Rig:
    """Steps whose actions are called words."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.errors: list[Exception] = []
        self.log, self.replica = SimpleNamespace(log_end=0), SimpleNamespace(log_end=0)
        self.stirred: set[int] = set()
        self.steps = Steps({Said: self._say}, self.log, self.replica, 7, self.stirred)
        self.then: dict[str, Any] = {}

    def _say(self, action: Said) -> None:
        self.words.append(action.word)
        if action.word in self.then:
            self.then[action.word]()

    def event(self, *words: str) -> Sequence[Said]:
        return [Said(word) for word in words]

    def run(self, *words: str) -> None:
        self.steps.step(self.event, *words)
        while self.steps.events:
            event, arguments = self.steps.events.popleft()
            self.steps.step(event, *arguments)
        self.steps.notify(self.errors.append)


def test_an_event_in_the_middle_of_a_step_waits_for_its_end() -> None:
    rig = Rig()
    rig.then["a"] = lambda: rig.steps.queue(rig.event, "x", "y")
    rig.run("a", "b")
    assert rig.words == ["a", "b", "x", "y"]


def test_a_step_inside_a_step_is_a_bug_and_leaves_the_next_one_possible() -> None:
    rig = Rig()
    rig.then["a"] = lambda: rig.steps.step(rig.event, "x")
    with pytest.raises(InvariantError, match="being carried out"):
        rig.run("a", "b")
    assert not rig.steps.is_acting
    rig.run("c")
    assert rig.words == ["a", "c"]


def test_news_is_told_in_order_after_the_steps_and_what_it_brings_about_after_it() -> None:
    rig = Rig()

    def tell(word: str) -> None:
        rig.words.append(f"told {word}")
        if word == "a":
            rig.run("nested")
            rig.words.append("told a, all of it")

    def a() -> None:
        rig.steps.later(tell, "a")
        rig.steps.queue(rig.event, "x")

    rig.then["a"] = a
    rig.then["b"] = lambda: rig.steps.later(tell, "b")
    rig.then["nested"] = lambda: rig.steps.later(tell, "nested")
    rig.then["x"] = lambda: rig.steps.notify(rig.errors.append)  # too early: nothing happens
    rig.run("a", "b")
    assert rig.words == ["a", "b", "x", "told a", "nested", "told a, all of it", "told b", "told nested"]


def test_a_listener_that_fails_is_reported_and_the_others_hear_all_the_same() -> None:
    rig = Rig()

    def fail() -> None:
        raise ValueError("deaf")

    def a() -> None:
        rig.steps.later(fail)
        rig.steps.later(rig.words.append, "heard")

    rig.then["a"] = a
    rig.run("a")
    assert [str(error) for error in rig.errors] == ["deaf"]
    assert rig.words == ["a", "heard"]


def test_when_it_is_stopped_the_rest_of_the_step_is_not_carried_out_and_nothing_is_told() -> None:
    rig = Rig()
    rig.then["a"] = lambda: rig.steps.later(rig.words.append, "told")
    rig.then["b"] = rig.steps.stop
    rig.run("a", "b", "c")
    assert rig.words == ["a", "b"]
