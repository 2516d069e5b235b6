"""The processes of a local cluster, as `antiphon up` and `antiphon node start` look after them."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from antiphon.client.local_folder import LocalClusterFile, LocalNode, load_cluster
from antiphon.errors import AntiphonError
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import is_stopped

LOOK_S: Final = 0.1
# How long no node may run before there is nothing left to look after: who restarts the only one needs a moment.
GONE_S = 10.0


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


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what is done within as ctrl-C does."""

    def end(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def note_signals() -> list[int]:
    """From now on signals that ask this process to end are only noted, in the list that is returned."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _frame: asked.append(n))
    return asked


def attend(directory: Path, cluster: LocalClusterFile, asked: list[int], *, whole: bool = True) -> None:
    """Wait for a signal, say when a node ends by itself, then stop every node, also ones started or added later.

    Also returns once `antiphon down` has stopped all. Raises AntiphonError where no node is left and none was started
    again for a while, so that who looks after this process takes that for a failure.
    `whole`: the nodes are all of the cluster in `directory`, and not one of them.
    """
    gone_at: float | None = None
    while not asked:
        _report_ended(directory)
        if _runs_any(cluster) or (whole and _runs_any(cluster := _as_it_is_now(directory, cluster))):
            gone_at = None
        elif is_stopped(directory):
            report(f"`antiphon down` has stopped the nodes; the data is in {directory}")
            return
        else:
            now = time.monotonic()
            gone_at = now if gone_at is None else gone_at
            if now - gone_at >= GONE_S:
                what = "no node of the cluster runs any more" if whole else "the node runs no more"
                raise AntiphonError(
                    f"{what}; the data is in {directory}: `antiphon up --dir {quoted(directory)}` goes on with it"
                )
        time.sleep(LOOK_S)
    if whole:
        cluster = _as_it_is_now(directory, cluster)
    killed = supervisor.stop_nodes([Path(node.dir) for node in cluster.nodes])
    if killed:
        raise AntiphonError(
            f"{len(killed)} nodes did not stop in time and were killed; they will recover at the next start"
        )


def report(text: str) -> None:
    """Say on stderr what became of nodes."""
    sys.stderr.write(f"antiphon: {text}\n")
    sys.stderr.flush()


def quoted(directory: Path) -> str:
    """A folder as a person types it in a shell."""
    return shlex.quote(str(directory))


def _runs_any(cluster: LocalClusterFile) -> bool:
    return supervisor.runs_any(Path(node.dir) for node in cluster.nodes)


def _as_it_is_now(directory: Path, cluster: LocalClusterFile) -> LocalClusterFile:
    """With nodes that were added since; a file that cannot be read for the moment changes nothing."""
    try:
        return load_cluster(directory) or cluster
    except (AntiphonError, OSError):
        return cluster


def _report_ended(directory: Path) -> None:
    for pid, wait_status, folder in supervisor.reap():
        if folder is None or is_stopped(directory):
            continue
        code = os.waitstatus_to_exitcode(wait_status)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        report(
            f"{folder.name} (pid {pid}) {how}; `antiphon node start --dir {quoted(folder)}` brings it back"
        )
