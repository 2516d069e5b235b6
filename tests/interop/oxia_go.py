"""The tests of Oxia's Go client that need a server, each against nodes of its own.

They start the server in their own process, so its package is replaced by one that starts nodes (`go/standalone.go`). The
rest of the module stays as it is.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.interop.suite import Outcome
from tests.peers.servers.peer import UnavailableError, run_tool

MODULE: Final = "github.com/oxia-db/oxia"
VERSION: Final = "v0.14.0"  # later ones cannot be fetched as Go modules
PACKAGES: Final = ("./oxia/", "./oxia/internal/", "./tests/sequence/")
KEPT: Final = "auth"  # of the server's package, which the client's needs
NODES: Final = 3
RUN_S: Final = 1_200.0
HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
RESULTS: Final = {"pass": "passed", "fail": "failed", "skip": "skipped"}


def outcomes_of(said: str) -> list[Outcome]:
    """What `go test -json` says of each test; not of the parts of a test, and of a package only where it has failed without
    a test of it that has.
    """
    words: dict[str, str] = {}
    found = []
    to_blame: set[str] = set()  # packages with a test that has failed: they fail for it
    for line in said.splitlines():
        event: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        package, test = str(event.get("Package", "")), str(event.get("Test", ""))
        name = (test or package).rpartition("/")[2]
        if event.get("Action") == "output" and "Error" in event.get("Output", ""):
            words[name] = (words.get(name, "") + event["Output"].strip())[-300:]
        result = RESULTS.get(str(event.get("Action")))
        if result == "failed" and test:
            to_blame.add(package)
        counts = "/" not in test if test else result == "failed" and package not in to_blame
        if result is not None and counts:
            found.append(Outcome(name, result, words.get(name, "") if result == "failed" else ""))
    return found


class OxiaGo:
    """See the module's text."""

    name = "oxia-go"
    title = f"oxia {VERSION} (Go), its client's tests against a server"
    differences: dict[str, str] = {
        "TestSyncClientImpl_PartitionRouting": "it finds a key of Oxia's own next to the last one; there are none here",
        "TestGetValueWithSessionId": "it counts on a session taking an id of versions",
        "TestWithStandalone": "it counts on the shard's number being 0",
    }
    settings: dict[str, str] = {}  # it starts nodes of its own

    def __init__(self) -> None:
        self._source = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        if shutil.which("go") is None:
            raise UnavailableError("go is not installed")
        self._source = made = folder / f"oxia-go-{VERSION}"
        if not made.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            said = run_tool(("go", "mod", "download", "-json", f"{MODULE}@{VERSION}"), folder)
            part = folder / f"{made.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(json.loads(said)["Dir"], part, copy_function=shutil.copyfile)
            for path in (part, *part.rglob("*")):
                path.chmod(0o700)
            part.rename(made)
        for path in (made / "server").iterdir():
            if path.name != KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copyfile(HERE / "go" / "standalone.go", made / "server" / "standalone.go")
        run_tool(("go", "test", "-exec", "true", *PACKAGES), made)  # builds all, and runs nothing

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        command = (
            "go",
            "test",
            "-json",
            "-count=1",
            "-p",
            "1",
            f"-timeout={RUN_S:.0f}s",
            "-run",
            "^Test",
            *PACKAGES,
        )
        environment = os.environ | {
            "ANTIPHON_PYTHON": sys.executable,
            "ANTIPHON_PATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "ANTIPHON_NODES": str(NODES),
        }
        done = subprocess.run(
            command, cwd=self._source, env=environment, capture_output=True, text=True, check=False
        )
        (where / "oxia-go.jsonl").write_text(done.stdout)
        return outcomes_of(done.stdout) or [Outcome("all", "failed", done.stderr[-300:])]
