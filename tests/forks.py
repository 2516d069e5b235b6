"""Processes that are forked from one which has imported the program already.

Most of the life of a short command, and half a second of the life of each node, is imports; the tests start hundreds of
both. What is forked is a process like any other: with an environment, descriptors, signals and an exit code of its own.
"""

import os
import sys
from multiprocessing import get_context, reduction
from typing import Any, Final

FORKS: Final = get_context("forkserver")
FORKS.set_forkserver_preload(  # what a command needs, and what `antiphon.server.process.warm_up` imports for nodes
    [
        "antiphon.cli.main",
        "antiphon.client.sync",
        "antiphon.server.process",
        "antiphon.kafka.listener",
        "antiphon.http.listener",
        "antiphon.table.state",
        "antiphon.spark.staging.housekeeper",
        "uvloop",
        "tests.cli.shell",
        "tests.node.run_one_node",
    ]
)


class Handed:
    """A descriptor of this process for one that is being forked, where it is a number."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, (reduction.DupFd(self._descriptor),)


def _taken(descriptor: Any) -> int:
    return int(descriptor.detach())


def become(environment: dict[str, str], stdin: int, stdout: int, stderr: int) -> None:
    """In the forked process: these are its environment and its standard files from now on."""
    for number, given in enumerate((stdin, stdout, stderr)):
        os.dup2(given, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    # A server that was forked with closed files has none of these; who asks for the size of the terminal asks them.
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(environment)
