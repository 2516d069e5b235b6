"""Stops a node of a local cluster and starts it with another Python: restart_with.py PYTHON DIR NODE."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STOP_S = 120


def main() -> int:
    """The exit code of `antiphon node start`."""
    python, directory, node = sys.argv[1:]
    folder = Path(directory) / f"node-{node}"
    words = [path for path in folder.glob("*pid*") if path.is_file()]
    pid = int(words[0].read_text().split()[0])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _runs(pid):
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.02)
    start = [python, "-m", "antiphon.cli.main", "node", "start", "--dir", str(folder)]
    return subprocess.run(start, check=False).returncode


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2:3]
    except (FileNotFoundError, ProcessLookupError):  # it ends while it is looked at
        return False


if __name__ == "__main__":
    sys.exit(main())
