"""Runs one node for the tests: `run_one_node.py DIR [bootstrap] [LISTENER=FD...]`.

It says `ready` on stdout, or the error on stderr.
"""

import os
import resource
import socket
import sys
from pathlib import Path

from antiphon.errors import AntiphonError
from antiphon.node.config import load_config
from antiphon.server.process import run_node


def main() -> int:
    directory, *words = sys.argv[1:]
    sockets = {}
    for word in words:
        name, is_listener, number = word.partition("=")
        if is_listener:
            sockets[name] = socket.socket(fileno=int(number))
    return run(Path(directory), sockets, bootstrap="bootstrap" in words)


def forked(
    directory: Path,
    sockets: dict[str, socket.socket],
    environment: dict[str, str],
    stdout: int,
    stderr: int,
    descriptors: int,
) -> None:
    """The same in a process that was forked. `descriptors`: see `Processes`."""
    from tests.forks import become  # a script does not find it

    become(environment, os.open(os.devnull, os.O_RDONLY), stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    sys.exit(run(directory, sockets, bootstrap=bool(sockets)))


def run(directory: Path, sockets: dict[str, socket.socket], *, bootstrap: bool) -> int:
    try:
        config = load_config(directory)
        config.bootstrap = bootstrap
        run_node(config, sockets=sockets, ready=lambda _joined: print("ready", flush=True))
    except AntiphonError as error:
        print(f"{error.code}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
