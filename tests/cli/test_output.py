"""What a command says when it fails."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from antiphon.cli import output
from antiphon.cli.output import progress, reports_errors
from antiphon.security import private_files
from antiphon.security.private_files import replace_text


@reports_errors
def _needs(module: str) -> None:
    raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(
    ("module", "extra"), [("numpy", "spark"), ("pyspark.sql", "spark"), ("deltalake", "lake")]
)
def test_a_missing_library_names_the_extra_that_brings_it(
    module: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stopped:
        _needs(module)
    assert stopped.value.exit_code == 1
    name = module.partition(".")[0]
    assert capsys.readouterr().err == f"antiphon: {name} is not installed: pip install 'antiphon[{extra}]'\n"


def test_a_missing_module_of_our_own_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError):
        _needs("antiphon.gone")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_one_line_that_says_what_to_do(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @reports_errors
    def write() -> None:
        raise OSError(number, os.strerror(number), "/data/node.toml")

    with pytest.raises(typer.Exit) as stopped:
        write()
    assert stopped.value.exit_code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"antiphon: cannot write /data/node.toml: {os.strerror(number)}; ")
    assert said.endswith(" and start again\n")
    assert said.count("\n") == 1


def test_a_file_that_says_the_same_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: str, _flags: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "node.toml"
    replace_text(file, "a = 1\n")
    monkeypatch.setattr(private_files, "_private", full)
    replace_text(file, "a = 1\n")
    with pytest.raises(OSError, match=r"node\.toml"):
        replace_text(file, "a = 2\n")
    assert file.read_text() == "a = 1\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.toml"]


def test_the_package_runs_as_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "antiphon", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.startswith("Usage: antiphon [OPTIONS]")


@pytest.mark.parametrize(
    ("terminal", "after_s", "shown"),
    [(True, 0.05, ["work", "end"]), (True, 60, []), (False, 0.05, []), (False, 0, [])],
)
def test_what_takes_long_shows_it_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, after_s: float, shown: list[str]
) -> None:
    seen = []

    @contextmanager
    def spinner(message: str) -> Iterator[None]:
        seen.append(message)
        yield
        seen.append("end")

    monkeypatch.setattr(output, "_spinner", spinner)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    began = time.monotonic()
    with progress("work", after_s=after_s):
        while shown and not seen:
            assert time.monotonic() < began + 20
            time.sleep(0.01)
    assert seen == shown
    assert time.monotonic() - began < 30
