"""The file that scripts of the tests call `antiphon` is the command, as far as a script can tell."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.script import AntiphonScript


def _script(folder: Path, text: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_words_environment_and_exit_codes_are_those_of_the_script(tmp_path: Path) -> None:
    with AntiphonScript(tmp_path / "bin"):
        done = _script(tmp_path, "antiphon --version && antiphon kv 'a b' | cat; antiphon no-such-command")
        assert done.returncode == 2
        assert done.stdout.startswith("antiphon ")
        assert "no-such-command" in done.stderr
        asked = _script(tmp_path, "antiphon status", ANTIPHON_SERVERS="127.0.0.1:1", ANTIPHON_TIMEOUT="1")
        assert asked.returncode == 1
        assert "127.0.0.1:1" in asked.stderr


def test_files_and_signals_reach_the_command(tmp_path: Path) -> None:
    with AntiphonScript(tmp_path / "bin") as script:
        up = subprocess.Popen(
            [str(script.file), "up", "--nodes", "1", "--dir", str(tmp_path / "c"), "--native-port", "0",
             "--kafka-port", "0", "--oxia-port", "0", "--http-port", "0", "--json"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert up.stdout is not None
        servers = json.loads(up.stdout.readline())["native"]
        piped = "antiphon topic create t; printf 'a\\nb\\n' | antiphon produce t; antiphon consume t --to 2 > read"
        assert _script(tmp_path, piped, ANTIPHON_SERVERS=servers).returncode == 0
        assert (tmp_path / "read").read_text().split() == ["a", "b"]
        up.send_signal(signal.SIGTERM)
        up.stdout.close()
        assert up.wait(20) == 0
        deadline = time.monotonic() + 5
        while list((tmp_path / "c").glob("node-*/pid")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not list((tmp_path / "c").glob("node-*/pid"))
