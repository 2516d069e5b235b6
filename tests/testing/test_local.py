"""`antiphon.local()`: nodes that end with their client."""

import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
from antiphon.errors import AntiphonError
from antiphon.tools.cluster_files import running_pid

pytestmark = pytest.mark.cluster

FORGETFUL = """
import antiphon, sys
db = antiphon.local(directory=sys.argv[1])
db.table("default").put("key", b"value")
print(db.cluster.nodes[0].pid)
"""


def test_nodes_end_with_the_block_and_a_directory_that_was_named_stays(tmp_path: Path) -> None:
    with antiphon.local(directory=tmp_path / "data") as db:
        assert db.create_topic("clicks").append(b"first").offset == 0
        assert repr(db) == f"<antiphon.local: 1 node in {tmp_path / 'data'}, running>"
        pid = db.cluster.nodes[0].pid
        assert running_pid(tmp_path / "data" / "node-0") == pid
    assert repr(db).endswith("stopped>")
    assert running_pid(tmp_path / "data" / "node-0") is None
    db.close()  # once more
    with antiphon.local(directory=tmp_path / "data") as db:
        assert [record.value for record in db.topic("clicks").read(shard=0)] == [b"first"]
        where = db.cluster.dir
    assert where.exists()


def test_nodes_end_with_a_process_that_forgets_them(tmp_path: Path) -> None:
    run = (sys.executable, "-c", FORGETFUL, str(tmp_path / "data"))
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) > 0
    assert running_pid(tmp_path / "data" / "node-0") is None


def test_a_temporary_directory_goes() -> None:
    db = antiphon.local()
    where = db.cluster.dir
    assert where.exists()
    db.close()
    assert not where.exists()


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AntiphonError, match="is a file"):
        antiphon.local(directory=tmp_path / "file")
