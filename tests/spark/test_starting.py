"""What is said while Spark's Python workers are being started, and to whom."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.spark import starting
from antiphon.spark.spark_errors import error_class

# Stands for the process that forks workers: what it imports takes so many seconds.
STARTING = """
import sys, time
from antiphon.spark import starting
starting.AFTER_S = 0.1
with starting.told_when_slow():
    time.sleep(float(sys.argv[1]))
time.sleep(0.2)  # nothing is said later
"""


def _said(place: str | None, takes_s: float) -> str:
    """On the stderr of that process."""
    environment = {name: value for name, value in os.environ.items() if name != starting.VARIABLE}
    if place is not None:
        environment[starting.VARIABLE] = place
    done = subprocess.run(
        (sys.executable, "-c", STARTING, str(takes_s)),
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=True,
    )
    assert not done.stdout
    return done.stderr


def test_a_slow_start_is_said_once_where_the_driver_wants_it() -> None:
    assert _said(starting.LOG, 0.5) == "antiphon: starting Python workers\n"
    assert _said(starting.LOG, 0.0) == "", "a quick start is not"
    assert _said(None, 0.5) == "", "where nobody asked for it nothing is said"


def test_it_is_said_on_the_terminal_of_the_driver() -> None:
    ours, theirs = os.openpty()
    try:
        assert _said(os.ttyname(theirs), 0.5) == "", "and not twice"
        assert os.read(ours, 1000).decode().endswith("antiphon: starting Python workers\r\n")
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_terminal_that_was_closed_does_no_harm(tmp_path: Path) -> None:
    assert _said(str(tmp_path / "gone" / "pts"), 0.5) == ""


def test_the_process_takes_signals_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(starting.VARIABLE, starting.LOG)
    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with starting.told_when_slow():
        assert signal.getsignal(signal.SIGALRM) != before
    assert signal.getsignal(signal.SIGALRM) == before
    assert abs(signal.getitimer(signal.ITIMER_REAL)[0] - timer[0]) < 5, "that of the test's own time-out"


def test_who_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(starting.VARIABLE, "of an earlier session")
    monkeypatch.setattr(starting.logger, "level", logging.WARNING)
    starting.note_place()
    assert starting.VARIABLE not in os.environ, "stderr is no terminal, and nobody asked for it"
    monkeypatch.setattr(starting.logger, "level", logging.INFO)
    monkeypatch.setattr(starting.logger, "_cache", {})
    starting.note_place()
    assert os.environ[starting.VARIABLE] == starting.LOG
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        starting.note_place()
        assert os.environ[starting.VARIABLE] == os.ttyname(theirs), "who sees it is told rather than the log"


def test_the_daemon_says_it_while_it_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import daemon as sparks

    from antiphon.spark import daemon

    said: list[str] = []
    monkeypatch.setenv(starting.VARIABLE, "here")
    monkeypatch.setattr(starting, "AFTER_S", 0.01)
    monkeypatch.setattr(starting, "_tell", said.append)
    monkeypatch.setattr(sparks, "manager", lambda: None)
    monkeypatch.setattr(daemon, "prepare", lambda: time.sleep(0.1))
    for words, wanted in ((["daemon", daemon.TASKS], ["here"]), (["daemon", "pyspark.sql.worker"], [])):
        said.clear()
        monkeypatch.setattr(sys, "argv", words)
        daemon.main()
        assert said == wanted


def test_an_error_within_sparks_is_of_its_own_class() -> None:
    assert error_class("UnknownTopicError: there is no topic 'x'") is UnknownTopicError
    assert error_class("SomethingElse: no") is AntiphonError
