"""Who ends and starts a node's process: this machine's local cluster, a command of the operator's, or the operator."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from antiphon.client.local_folder import LocalClusterFile
from antiphon.errors import InvalidRequestError, TimedOutError, UnavailableError
from antiphon.model.metadata import NodeMeta
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import running_pid

COMMAND: Final = (sys.executable, "-m", "antiphon.cli.main")
TOLD_MAX: Final = 2_000  # of what a failed command has printed
_PLACE: Final = re.compile(r"\{(\w*)\}")
# What a value may be made of: a command that hands its words to a shell of its own, as ssh does, finds nothing else there.
_PLAIN: Final = re.compile(r"[0-9A-Za-z\[][0-9A-Za-z._:\[\]-]*")


class LocalProcesses:
    """The nodes of a cluster of `antiphon up`: stopped as `antiphon down` does, started by `antiphon node start`.

    They run the program that this process runs, so this is also how such a cluster gets another version.
    """

    def __init__(self, cluster: LocalClusterFile, tell: Callable[[str], None]) -> None:
        self._dirs = {node.id: Path(node.dir) for node in cluster.nodes}
        self._tell = tell

    def restart(self, node: NodeMeta, timeout_s: float) -> None:
        """See Restarter."""
        directory = self._dirs.get(node.node_id)
        if directory is None:
            raise InvalidRequestError(
                f"node {node.node_id} is not one of this machine's cluster: restart it where it runs, with --command"
            )
        if running_pid(directory) is not None and supervisor.stop_nodes([directory]):
            self._tell(f"node {node.node_id} did not stop in time and was killed; it recovers now")
        words = (*COMMAND, "node", "start", "--dir", str(directory), "--json")
        _run(words, timeout_s, f"node {node.node_id} did not start", f"see {directory}/node.log")


class Command:
    """A command of the operator's, run once for each node: without a shell, each word by itself.

    `{node}`, `{host}`, `{native}`, `{kafka}` and `{http}` in a word stand for the node's id, host and addresses.
    """

    NAMES: Final = ("node", "host", "native", "kafka", "http")

    def __init__(self, text: str) -> None:
        """Raises InvalidRequestError for a text that is no command."""
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise InvalidRequestError(
                f"--command {text!r}: {error}; quote its words as for a shell"
            ) from None
        if not self._words:
            raise InvalidRequestError("--command is empty: give what restarts a node, with {node} for its id")
        strange = [name for word in self._words for name in _PLACE.findall(word) if name not in self.NAMES]
        if strange:
            raise InvalidRequestError(
                f"--command has {{{strange[0]}}}; there are {', '.join(f'{{{name}}}' for name in self.NAMES)}"
            )

    def words(self, node: NodeMeta) -> list[str]:
        """The command for a node. Raises InvalidRequestError where an address has signs that no address has."""
        values = {
            "node": str(node.node_id),
            "host": node.native.rpartition(":")[0],
            "native": node.native,
            "kafka": node.kafka,
            "http": node.http,
        }

        def value(found: re.Match[str]) -> str:
            text = values[found[1]]
            if not _PLAIN.fullmatch(text):
                raise InvalidRequestError(
                    f"node {node.node_id} says that its {found[1]} is {text!r}: that is not put into a command"
                )
            return text

        return [_PLACE.sub(value, word) for word in self._words]

    def restart(self, node: NodeMeta, timeout_s: float) -> None:
        """See Restarter."""
        words = self.words(node)
        _run(words, timeout_s, f"`{shlex.join(words)}` failed", "nothing else was restarted")


class ByHand:
    """Says that it is time; whoever reads it restarts the node."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def restart(self, node: NodeMeta, timeout_s: float) -> None:
        """See Restarter."""
        self._tell(
            f"node {node.node_id} ({node.native}): restart it now; the next one follows when it is back, within "
            f"{timeout_s:.0f} s"
        )


def _run(words: Sequence[str], timeout_s: float, what: str, more: str) -> None:
    """Run a command to its end. Raises UnavailableError where it fails, TimedOutError."""
    # Into a file, not a pipe: what the command leaves running would keep a pipe open.
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        except OSError as error:
            raise UnavailableError(f"{what}: {error.strerror}; {more}") from None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimedOutError(f"{what}: it has not ended within {timeout_s:.0f} s; {more}") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code:
            said.seek(max(0, said.seek(0, os.SEEK_END) - TOLD_MAX))
            told = said.read().decode(errors="replace").strip() or f"exit code {code}"
            raise UnavailableError(f"{what}: {told}; {more}")
