"""What `antiphon up` and `antiphon node` write into the directory of a local cluster: `cluster.json`, keys, pid files.

`client/local_folder.py` says what is in `cluster.json`, and reads it.
"""

import contextlib
import os
import secrets
import uuid
from pathlib import Path
from typing import Final

import msgspec

from antiphon.client.local_folder import CLUSTER_FILE, FORMAT, LocalClusterFile, LocalNode
from antiphon.errors import InvalidRequestError
from antiphon.security.private_files import private_folder, replace_text, write_private

PID_FILE: Final = "node.pid"
STOPPED_FILE: Final = "stopped"  # `antiphon down` was here last, and no node was started since
KEY_FILE: Final = "peer.key"
KEY_BYTES: Final = 32
SETTINGS_FILE: Final = "client.env"  # of a cluster that is made with --secure: the settings of its clients


def new_cluster(directory: Path, nodes: int, host: str, profile: str) -> LocalClusterFile:
    """Describe a fresh cluster; nothing is written yet."""
    if not 1 <= nodes <= 64:
        raise InvalidRequestError(f"a local cluster has 1 to 64 nodes, not {nodes}")
    members = [LocalNode(id=i, dir=str(directory / f"node-{i}")) for i in range(nodes)]
    cluster_id = uuid.uuid4().hex
    return LocalClusterFile(FORMAT, cluster_id, host, profile, members, founded=False, peer_key=KEY_FILE)


def new_node(directory: Path, cluster: LocalClusterFile) -> LocalNode:
    """Describe a node more, with an id and a folder that no node had before; nothing is written yet."""
    node_id = max(node.id for node in cluster.nodes) + 1
    while (directory / f"node-{node_id}").exists():
        node_id += 1
    return LocalNode(id=node_id, dir=str(directory / f"node-{node_id}"), added=True)


def save_cluster(directory: Path, cluster: LocalClusterFile) -> None:
    """Write `cluster.json` so that a crash leaves the old one or the new one."""
    private_folder(directory)
    replace_text(directory / CLUSTER_FILE, msgspec.json.format(msgspec.json.encode(cluster)).decode() + "\n")


def make_key(directory: Path, cluster: LocalClusterFile) -> None:
    """See to it that a new cluster has the key that its nodes share."""
    if cluster.peer_key and not cluster.founded and not (directory / cluster.peer_key).exists():
        private_folder(directory)
        write_private(directory / cluster.peer_key, secrets.token_hex(KEY_BYTES).encode() + b"\n")


def hand_out_key(cluster: LocalClusterFile, node_dir: Path) -> None:
    """Copy the key that the nodes share into a node's folder, where it is not there yet.

    Raises InvalidRequestError when it is nowhere.
    """
    own = node_dir / cluster.peer_key
    if not cluster.peer_key or own.exists():
        return
    for place in (node_dir.parent, *(Path(node.dir) for node in cluster.nodes)):
        if (place / cluster.peer_key).exists():
            write_private(own, (place / cluster.peer_key).read_bytes())
            return
    raise InvalidRequestError(
        f"the key of the cluster's nodes, {node_dir.parent / cluster.peer_key}, is gone: put it back from a backup"
    )


def note_stopped(directory: Path) -> None:
    """Note that all nodes are about to be stopped on purpose: whoever looks after them has nothing left to do then."""
    with contextlib.suppress(OSError):  # a full disk does not keep a cluster from being stopped
        (directory / STOPPED_FILE).write_bytes(b"")


def forget_stopped(directory: Path) -> None:
    """A node is about to be started."""
    with contextlib.suppress(OSError):
        (directory / STOPPED_FILE).unlink()


def is_stopped(directory: Path) -> bool:
    """Was the cluster stopped by `antiphon down`?"""
    return (directory / STOPPED_FILE).exists()


def write_pid(node_dir: Path, pid: int) -> None:
    """Note which process serves a node's folder."""
    replace_text(node_dir / PID_FILE, f"{pid} {_started_at(pid)}\n")


def running_pid(node_dir: Path) -> int | None:
    """The pid that serves the folder, or None; a recycled pid is not taken for ours."""
    try:
        words = (node_dir / PID_FILE).read_text().split()
        pid = int(words[0])
        os.kill(pid, 0)
    except (OSError, ValueError, IndexError):
        return None
    if len(words) > 1 and _started_at(pid) != words[1]:
        return None
    return None if _is_zombie(pid) else pid


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name; empty where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started_at(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else "0"


def _is_zombie(pid: int) -> bool:
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] == "Z"
