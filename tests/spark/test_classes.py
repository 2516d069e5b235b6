"""Spark's classes, kept in a file: who takes it, and that Java does."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.errors import AntiphonError
from antiphon.spark import classes, java

DRIVER = """
import os
from pathlib import Path
import antiphon.spark

spark = antiphon.spark.session(cores=1, config={"spark.driver.extraJavaOptions": "-Dsaid.by.me=yes"})
system = spark.sparkContext._jvm.System
pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print(system.getProperty("said.by.me"), *{line.split()[-1] for line in open(f"/proc/{pid}/maps") if ".jsa" in line})
spark.stop()
"""


def home_of(folder: Path, release: str) -> Path:
    folder.mkdir()
    (folder / "release").write_text(release)
    return folder


def test_each_java_and_each_spark_has_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    one = home_of(tmp_path / "one", 'JAVA_VERSION="17.0.1"')
    files = {classes.archive_of(one, tmp_path), classes.archive_of(home_of(tmp_path / "two", ""), tmp_path)}
    (one / "release").write_text('JAVA_VERSION="17.0.2"')
    files.add(classes.archive_of(one, tmp_path))
    monkeypatch.setattr(classes, "version", lambda _: "4.3.1")
    files.add(classes.archive_of(one, tmp_path))
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    files.add(classes.archive_of(one, tmp_path))
    assert len(files) == 5
    assert {file.parent for file in files} == {tmp_path}


def test_a_session_takes_the_file_if_there_is_one(tmp_path: Path) -> None:
    cache = tmp_path / "the cache"
    cache.mkdir()
    assert classes.java_options(tmp_path, "-Da=b", cache) == "-Da=b"
    assert classes.java_options(tmp_path, "", cache) == ""
    file = classes.archive_of(tmp_path, cache)
    file.touch()
    first, *_, last = shlex.split(classes.java_options(tmp_path, "-Da=b", cache))
    assert (first, last) == (f"-XX:SharedArchiveFile={file}", "-Da=b"), "what is given comes last, and wins"


def test_what_java_said_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "_DRIVER", "import sys; sys.exit('no Spark today')")
    with pytest.raises(AntiphonError, match="Java kept no classes: no Spark today"):
        classes.keep_classes(tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.suffix == ".jsa"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.driver
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.timeout(300)
def test_java_takes_the_classes_that_were_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    said = CliRunner().invoke(app, ["spark-warm", "--json"])
    assert said.exit_code == 0, said.output
    file = Path(json.loads(said.stdout)["file"])
    assert file == classes.archive_of(java.find_java().home)
    assert json.loads(said.stdout)["bytes"] == file.stat().st_size > 10_000_000
    ran = subprocess.run(
        (sys.executable, "-c", DRIVER),
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    given, *taken = ran.stdout.split()
    assert given == "yes"
    assert str(file) in taken
