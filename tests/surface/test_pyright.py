"""The examples, as Pyright sees them: what an editor shows to those who write such programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHERS = [
    "declarative_pipeline",
    "conditional_kafka.py",
]  # Spark's own names, and clients of others without types


@pytest.mark.slow
def test_the_examples_have_no_errors(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright", reason="pip install basedpyright, which brings its own node")
    settings = {
        "include": [str(ROOT / "examples")],
        "exclude": [str(ROOT / "examples" / name) for name in OTHERS],
        "extraPaths": [str(ROOT / "src"), str(ROOT / "examples")],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "-p",
        str(tmp_path),
        "--pythonpath",
        sys.executable,
        "--outputjson",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] > 8
    errors = [one for one in found["generalDiagnostics"] if one["severity"] == "error"]
    assert not errors, "\n".join(f"{one['file']}: {one['message']}" for one in errors)
