"""Runs one node for the tests: `run_one_node.py DIR DOOR=FD...`; says `ready` on stdout, or the error on stderr."""

import socket
import sys
from pathlib import Path

from antiphon.errors import AntiphonError
from antiphon.node.config import load_config
from antiphon.node.node import run_node


def main() -> int:
    sockets = {}
    for word in sys.argv[2:]:
        door, _, number = word.partition("=")
        sockets[door] = socket.socket(fileno=int(number))
    try:
        run_node(load_config(Path(sys.argv[1])), sockets=sockets, ready=lambda: print("ready", flush=True))
    except AntiphonError as error:
        print(f"{error.code}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
