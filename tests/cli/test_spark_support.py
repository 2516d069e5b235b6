"""What commands that are Spark jobs share, with a session that is not Spark's: errors, noise, the environment."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import antiphon.spark
from antiphon.cli.main import app
from antiphon.cli.spark_support import spark_job
from antiphon.errors import AntiphonError, UnknownTopicError

JAVA_SAYS = """An error occurred while calling o44.count.
: org.apache.spark.SparkException: Job aborted: Traceback (most recent call last):
  File "log_reader.py", line 140, in partitions
antiphon.errors.UnknownTopicError: there is no topic 'nope'; create it first
 SQLSTATE: 38000
\tat org.apache.spark.Here(Here.scala:1)
"""


class FakeSession:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSession:
    made = FakeSession()

    def start(*_words: Any, **_options: Any) -> FakeSession:
        subprocess.run(["/bin/sh", "-c", "echo noise of java >&2"], check=True)
        sys.stderr.write("words of ours\n")
        return made

    monkeypatch.setattr(antiphon.spark, "session", start)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return made


def test_noise_of_java_goes_to_a_file_that_goes_too(
    session: FakeSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with spark_job("antiphon audit") as spark:
        (log,) = tmp_path.iterdir()
        assert log.read_text() == "noise of java\n"
        assert spark is session
    assert session.stopped
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == "words of ours\n"


def test_an_error_of_ours_within_one_of_sparks_is_one_line(session: FakeSession, tmp_path: Path) -> None:
    with (
        pytest.raises(
            AntiphonError,
            match=r"^UnknownTopicError: there is no topic 'nope'; create it first \(Spark's own log: ",
        ) as caught,
        spark_job("antiphon audit"),
    ):
        raise RuntimeError(JAVA_SAYS)
    (log,) = tmp_path.iterdir()
    assert str(log) in caught.value.message
    assert session.stopped


def test_other_errors_stay_what_they_are(session: FakeSession, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError, match=r"^none$"), spark_job("antiphon audit"):
        raise UnknownTopicError("none")
    with pytest.raises(typer.Exit), spark_job("antiphon audit"):
        raise typer.Exit(1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError) as caught, spark_job("antiphon audit"):
        raise ZeroDivisionError
    (log,) = tmp_path.iterdir()
    assert caught.value.__notes__ == [f"Spark's own log: {log}"]


def test_the_environment_of_sparks_own_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.9")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    said = CliRunner().invoke(app, ["spark-env"])
    assert said.exit_code == 0
    script = f'{said.stdout}\necho "$JAVA_HOME|$PYSPARK_PYTHON|$SPARK_LOCAL_IP"'
    ran = subprocess.run(["/bin/sh", "-e", "-c", script], capture_output=True, text=True, check=True)
    java, python, address = ran.stdout.strip().split("|")
    assert (Path(java) / "bin" / "java").exists()
    assert (python, address) == (sys.executable, "127.0.0.9")
    assert all(shlex.split(line)[0] == "export" for line in said.stdout.splitlines())
