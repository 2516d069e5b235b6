"""What the doctor sees in the folder of a local cluster: processes, settings, ports, secrets, certificates."""

import errno
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from antiphon.client.local_folder import LISTENERS, PASSWORD_FILE, PEER_LISTENER, LocalClusterFile, LocalNode
from antiphon.errors import AntiphonError
from antiphon.node.config import CONFIG_FILE, load_config
from antiphon.tools.cluster_files import running_pid
from antiphon.tools.doctor_finding import Finding, finding

CERTIFICATE_LOW_S: Final = 30 * 86_400
DEFAULT_PORTS: Final = {"kafka": 9092, "native": 7400, "http": 8080, "oxia": 6648}


def examine_folder(cluster: LocalClusterFile) -> list[Finding]:
    """Every finding about a local cluster that needs no node's answer."""
    findings = []
    for node in cluster.nodes:
        findings += [*_settings(node), *_process(node)]
    findings += _folders(cluster)
    if cluster.secure:
        findings += [*_secrets(Path(cluster.nodes[0].dir).parent, cluster), _certificates(cluster)]
    return findings


def _settings(node: LocalNode) -> list[Finding]:
    """A node.toml that the node could not start with."""
    if not (Path(node.dir) / CONFIG_FILE).exists():
        return []
    try:
        load_config(Path(node.dir))
    except AntiphonError as error:
        do = f"correct the file, then `antiphon node start --dir {node.dir}`"
        return [finding("wrong", f"node {node.id} cannot start with its settings: {error.message}", do)]
    return []


def _process(node: LocalNode) -> list[Finding]:
    pid = running_pid(Path(node.dir))
    if pid is not None:
        return [finding("ok", f"node {node.id} runs as pid {pid}")]
    findings = [finding("note", f"node {node.id} is not running", f"antiphon node start --dir {node.dir}")]
    for name in (*LISTENERS, PEER_LISTENER):
        host, _, port = str(getattr(node, name)).rpartition(":")
        if port and is_taken(host, int(port)):
            findings.append(
                finding(
                    "wrong",
                    f"port {port} ({name} listener of node {node.id}) is taken by another program",
                    f"end that program (ss -ltnp 'sport = :{port}'), or `antiphon up --{name}-port 0` takes a free port",
                )
            )
    return findings


def default_ports() -> list[Finding]:
    """Where there is no cluster yet: can `antiphon up` have the ports that it takes?"""
    taken = [
        f"{port + node} ({name})"
        for name, port in DEFAULT_PORTS.items()
        for node in range(3)
        if is_taken("127.0.0.1", port + node)
    ]
    if not taken:
        return [finding("ok", "the ports that `antiphon up` takes are free")]
    names = sorted({text.partition("(")[2].rstrip(")") for text in taken})
    do = f"antiphon up {' '.join(f'--{name}-port 0' for name in names)} takes free ones"
    return [finding("note", f"ports that `antiphon up` takes are not free: {', '.join(taken)}", do)]


def is_taken(host: str, port: int) -> bool:
    """Does somebody listen there, so that a node cannot?"""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _secrets(directory: Path, cluster: LocalClusterFile) -> list[Finding]:
    """Files that others than their owner may read or write."""
    names = ("authority.key", "peers-authority.key", PASSWORD_FILE, cluster.peer_key)
    files = [directory / name for name in names]
    for node in cluster.nodes:
        files += [Path(node.dir) / name for name in ("node.key", "peer-tls.key", cluster.peer_key)]
    return _open_to_others(files, "a secret", 600)


def _folders(cluster: LocalClusterFile) -> list[Finding]:
    """Folders of nodes that others than their owner may look into: one that was there keeps its mode."""
    folders = [Path(node.dir) for node in cluster.nodes]
    return _open_to_others(folders, "a node's", 700)


def _open_to_others(paths: Iterable[Path], what: str, mode: int) -> list[Finding]:
    return [
        finding("wrong", f"{path} is {what}, and others than its owner may use it", f"chmod {mode} {path}")
        for path in paths
        if path.exists() and path.stat().st_mode & 0o077
    ]


def _certificates(cluster: LocalClusterFile) -> Finding:
    """How long the nodes' certificates last."""
    from antiphon.security.authority import last_day

    files = [Path(node.dir) / name for node in cluster.nodes for name in ("node.pem", "peer.pem")]
    try:
        ends = min(last_day(file.read_bytes()) for file in files)
    except (OSError, ValueError) as error:
        do = "put it back; or remove it, and `antiphon up`"
        return finding("wrong", f"a certificate cannot be read: {error}", do)
    text = f"the nodes' certificates are good until {ends:%Y-%m-%d}"
    if ends.timestamp() - time.time() < CERTIFICATE_LOW_S:
        do = "`antiphon node start` makes a new one: stop and start one node after the other"
        return finding("wrong", text, do)
    return finding("ok", text)
