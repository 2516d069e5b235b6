"""What a local cluster leaves in its directory: `cluster.json`, one folder a node, pid files.

`DIR/cluster.json` is written by `antiphon up` and read by every other command that is given `--dir`. A node's own truth
is in its folder (`node.toml`, identity, logs); this file only says which folders belong together and where they listen.
"""

import json
import os
import secrets
import uuid
from pathlib import Path
from typing import Final

import msgspec

from antiphon.errors import AntiphonError, ForeignDirectoryError, InvalidRequestError, NewerFormatError
from antiphon.node.config import replace_text
from antiphon.security.private_files import private_folder, write_private

FORMAT: Final = 1
CLUSTER_FILE: Final = "cluster.json"
PID_FILE: Final = "node.pid"
LISTENERS: Final = ("native", "kafka", "http")
PEER_LISTENER: Final = "peer"  # for other nodes, where they share a key
KEY_FILE: Final = "peer.key"
KEY_BYTES: Final = 32
EVERYWHERE: Final = ("0.0.0.0", "")  # noqa: S104 - compared
# Of a cluster that is made with --secure: whom its clients trust, who they may log in as, and that as settings.
AUTHORITY_FILE: Final = "authority.pem"
FIRST_USER: Final = "admin"
PASSWORD_FILE: Final = "admin.password"  # noqa: S105 - the name of a file
SETTINGS_FILE: Final = "client.env"


class LocalNode(msgspec.Struct):
    """One node of a local cluster. Addresses are `host:port` of its last start, empty where a listener is off.

    `added`: it joined later; the others chose the voters of `__cluster` without it.
    """

    id: int
    dir: str
    native: str = ""
    kafka: str = ""
    oxia: str = ""
    http: str = ""
    added: bool = False
    peer: str = ""


class LocalClusterFile(msgspec.Struct):
    """The contents of `cluster.json`. `founded`: all of its nodes have been up together.

    `peer_key`: the file with the key that the nodes share; empty in clusters that an earlier version made.
    `secure`: made with TLS and authentication on every listener. `names`: further names and addresses for its certificates.
    `insecure`: it may do without where others than this machine reach it.
    """

    format: int
    cluster_id: str
    host: str
    profile: str
    nodes: list[LocalNode]
    founded: bool = True
    peer_key: str = ""
    secure: bool = False
    names: list[str] = []
    insecure: bool = False

    @property
    def host_told(self) -> str:
        """What clients are told to connect to: the first of `names` where the nodes listen on every address."""
        return self.names[0] if self.host in EVERYWHERE and self.names else self.host

    def told(self, address: str) -> str:
        """A listener's address as clients are told it."""
        if self.host not in EVERYWHERE:
            return address
        host, port = self.host_told, address.rpartition(":")[2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def listeners(self) -> tuple[str, ...]:
        """The listeners that each node has."""
        return (*LISTENERS, PEER_LISTENER) if self.peer_key else LISTENERS


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


def load_cluster(directory: Path) -> LocalClusterFile | None:
    """Read `cluster.json`; None where there is none."""
    path = directory / CLUSTER_FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise InvalidRequestError(f"{directory} is a file; give a directory with --dir") from None
    try:
        format_ = json.loads(raw).get("format")
        if isinstance(format_, int) and format_ > FORMAT:
            raise NewerFormatError(
                f"{path} has format {format_}, this version reads up to {FORMAT}: use the newer antiphon that wrote it"
            )
        cluster = msgspec.json.decode(raw, type=LocalClusterFile)
    except (msgspec.DecodeError, json.JSONDecodeError, AttributeError) as error:
        raise ForeignDirectoryError(
            f"{path} is not a cluster description ({error}); use another --dir"
        ) from None
    for node in cluster.nodes:  # the directory may have been moved since
        node.dir = str(directory / Path(node.dir).name)
    return cluster


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


def find_cluster(directory: Path) -> LocalClusterFile:
    """Read `cluster.json` or say what to do about it not being there."""
    cluster = load_cluster(directory)
    if cluster is None:
        raise AntiphonError(
            f"no cluster in {directory}: start one with `antiphon up --dir {directory}`, or name its --dir"
        )
    return cluster


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
