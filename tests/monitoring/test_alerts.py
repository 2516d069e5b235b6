"""Every alert rule is fired by promtool: when it says, with all that its text says, and not by what is harmless.

promtool comes with Prometheus (Debian: the package `prometheus`). Without it these tests are skipped; what the rules ask
for is compared with what nodes tell in `tests/server/test_metrics.py` in any case.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.cases import CASES, Case

FILE = Path(__file__).parents[2] / "monitoring" / "alerts.yml"
PAGE = FILE.parents[1] / "docs" / "metrics.md"
RULES = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="no promtool: install Prometheus (Debian: apt-get install prometheus), or set PROMTOOL",
)


def rendered(text: str, case: Case) -> str:
    """An annotation, as people see it."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
    return text.replace("{{ $value }}", case.value)


def promtool_test(case: Case, series: dict[str, str], minutes: dict[int, bool]) -> dict[str, Any]:
    """A test of promtool: does the rule fire after so many minutes?"""
    rule = RULES[case.alert]
    alert = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {name: rendered(text, case) for name, text in rule["annotations"].items()},
    }
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{at}m", "alertname": case.alert, "exp_alerts": [alert] if fires else []}
            for at, fires in minutes.items()
        ],
    }


def judged(tests: list[dict[str, Any]], folder: Path, rules: Path = FILE) -> subprocess.CompletedProcess[str]:
    """What promtool says of them."""
    assert PROMTOOL is not None
    written = {"rule_files": [str(rules)], "evaluation_interval": "15s", "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(written))
    return subprocess.run(
        [PROMTOOL, "test", "rules", str(folder / "tests.yml")], capture_output=True, text=True, check=False
    )


def test_every_rule_has_a_case() -> None:
    assert [case.alert for case in CASES] == list(RULES)
    assert f"{len(RULES)} alert rules" in PAGE.read_text()


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_the_rule_fires_when_it_should(case: Case, tmp_path: Path) -> None:
    tests = [
        promtool_test(case, case.fires, {case.not_at: False, case.at: True}),
        promtool_test(case, case.harmless, {case.at: False}),
    ]
    done = judged(tests, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_a_rule_that_does_not_fire_is_told(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(
        FILE.read_text().replace("antiphon_disk_full > 0", "antiphon_disk_full > 1")
    )
    case = next(case for case in CASES if case.alert == "AntiphonDiskFull")
    done = judged([promtool_test(case, case.fires, {case.at: True})], tmp_path, tmp_path / "rules.yml")
    assert done.returncode != 0
    assert "got:[]" in done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_the_files(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    for name in ("alerts.yml", "prometheus.yml"):
        shutil.copy(FILE.parent / name, tmp_path / name)
    done = subprocess.run(
        [PROMTOOL, "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
