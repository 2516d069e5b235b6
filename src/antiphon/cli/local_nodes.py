"""The processes of a local cluster, as `antiphon up` and `antiphon node start` look after them."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import typer

from antiphon.client.local_folder import LocalClusterFile, LocalNode, load_cluster
from antiphon.errors import AntiphonError
from antiphon.tools import supervisor


def node_json(node: LocalNode, pid: int | None) -> dict[str, Any]:
    """What commands say of a node that they have started."""
    return {
        "id": node.id,
        "pid": pid,
        "dir": node.dir,
        "kafka": node.kafka,
        "oxia": node.oxia or None,
        "native": node.native,
        "http": node.http,
    }


def note_signals() -> list[int]:
    """From now on signals that ask this process to end are only noted, in the list that is returned."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _frame: asked.append(n))
    return asked


def attend(directory: Path | None, cluster: LocalClusterFile, asked: list[int]) -> None:
    """Wait for a signal, say when a node ends by itself, then stop every node, also ones started or added later."""
    while not asked:
        for pid, wait_status in supervisor.reap():
            code = os.waitstatus_to_exitcode(wait_status)
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            typer.echo(
                f"antiphon: a node (pid {pid}) {how}; `antiphon node start --dir DIR/node-N` brings it back",
                err=True,
            )
        time.sleep(0.1)
    if directory is not None:
        cluster = load_cluster(directory) or cluster
    killed = supervisor.stop_nodes([Path(node.dir) for node in cluster.nodes])
    if killed:
        raise AntiphonError(
            f"{len(killed)} nodes did not stop in time and were killed; they will recover at the next start"
        )
