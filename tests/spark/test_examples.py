"""The examples that start Spark by themselves run as they are, and show what they promise."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import antiphon
from antiphon.tools.local_cluster import LocalCluster
from tests.spark.quick_java import QUICK_DRIVER

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.driver, pytest.mark.cluster]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_the_declarative_pipeline(cluster: LocalCluster, tmp_path: Path, warm_python: dict[str, str]) -> None:
    """As its README says, word for word."""
    here = tmp_path / "pipeline"
    copytree(EXAMPLES / "declarative_pipeline", here)
    spec = here / "spark-pipeline.yml"
    storage = "file:///tmp/antiphon-pipeline/storage"
    assert storage in spec.read_text()
    spec.write_text(spec.read_text().replace(storage, (tmp_path / "storage").as_uri()))
    script = "\n".join(re.findall(r"```sh\n(.*?)```", (here / "README.md").read_text(), re.DOTALL))
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", script],
        cwd=here,
        env=os.environ
        | warm_python
        | {
            "ANTIPHON_SERVERS": cluster.native,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "JDK_JAVA_OPTIONS": QUICK_DRIVER,
        },
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Run is COMPLETED" in done.stdout
    with antiphon.connect(cluster.native) as db:
        large = [json.loads(record.value or b"") for record in db.topic("example-large-orders").read()]
        assert sorted(order["amount"] for order in large) == [150, 200]
        last = {
            row.key.decode(): json.loads(row.value or b"")["amount"]
            for row in db.table("example-last-orders").scan()
        }
        assert last == {"tea": 200, "coffee": 150, "cake": 30}
    import pyarrow.parquet as pq

    def rows(name: str) -> list[dict[str, Any]]:
        files = sorted((here / "spark-warehouse" / name).glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    assert sorted(row["amount"] for row in rows("orders")) == [12, 30, 150, 200]
    assert {row["product"]: row["revenue"] for row in rows("revenue")} == {
        "tea": 212,
        "coffee": 150,
        "cake": 30,
    }


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: dict[str, str]) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells), (
        "commit it without outputs"
    )
    kernel = tmp_path / "kernels" / "antiphon"
    kernel.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": arguments, "display_name": "Antiphon", "language": "python"})
    )
    for variable in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    for variable, value in {"JDK_JAVA_OPTIONS": QUICK_DRIVER, **warm_python}.items():
        monkeypatch.setenv(variable, value)
    client = NotebookClient(
        notebook, timeout=150, kernel_name="antiphon", resources={"metadata": {"path": str(tmp_path)}}
    )
    try:
        client.execute()
    finally:  # where a cell failed, its cluster is still there
        for folder in tmp_path.glob("antiphon-tour-*/cluster"):
            subprocess.run(
                [sys.executable, "-m", "antiphon.cli.main", "down", "--dir", str(folder)], check=False
            )
    said = [
        "".join(
            output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in cell.outputs
        )
        for cell in cells
    ]
    whole = "\n".join(said)
    assert "refused: expected 0, the shard is at 1" in whole
    now, then = whole.split("now:")[1].split("then:")
    assert re.findall(r"\| *(\w+)\| *(\d+)\|", now) == [("Nairobi", "23"), ("Uppsala", "23")]
    assert re.findall(r"\| *(\w+)\| *(\d+)\|", then.split("+\n\n")[0]) == [
        ("Lisbon", "11"),
        ("Nairobi", "11"),
        ("Uppsala", "11"),
    ]
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert said[-1] == "" or "returncode=0" in said[-1]
