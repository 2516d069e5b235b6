"""Runs one node for the tests: `run_one_node.py DIR [bootstrap] [LISTENER=FD...]`.

It says `ready` on stdout, or the error on stderr.
"""

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
    try:
        config = load_config(Path(directory))
        config.bootstrap = "bootstrap" in words
        run_node(config, sockets=sockets, ready=lambda _joined: print("ready", flush=True))
    except AntiphonError as error:
        print(f"{error.code}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
