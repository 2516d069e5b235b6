"""The code on the pages runs as it stands there, page by page, and prints what the page says that it prints."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.tools.local_cluster import LocalCluster
from tests.pages.blocks import DATA, LANGUAGES, ROOT, SHOWN, Block, Reader, blocks_of, fences_of
from tests.pages.not_run import ELSEWHERE, NOT_RUN, PAGES, runs, wants_spark
from tests.pages.scenes import AFTER, BEFORE, scene

pytestmark = pytest.mark.cluster

PLAIN = [page for page in PAGES if not wants_spark(page)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(3) as started:
        yield started


@pytest.mark.parametrize("page", [page for page in PLAIN if any(map(runs, blocks_of(page)))])
def test_the_code_of_a_page(page: str, cluster: LocalCluster, tmp_path: Path) -> None:
    with scene(page, cluster, tmp_path, kafka=cluster.kafka) as reader:
        for block in filter(runs, blocks_of(page)):
            reader.follow(block)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        pytest.param(block, NOT_RUN[page, block.first_line], id=f"{page}:{block.line}")
        for page in PAGES
        for block in blocks_of(page)
        if (page, block.first_line) in NOT_RUN
    ],
)
def test_code_that_is_not_run(block: Block, reason: str) -> None:
    pytest.skip(reason)


def test_the_list_of_what_is_not_run_is_current() -> None:
    there = {(page, block.first_line) for page in PAGES for block in blocks_of(page)}
    assert set(NOT_RUN) - there == set()
    assert (set(ELSEWHERE) | set(BEFORE) | set(AFTER)) - set(PAGES) == set()
    for reason in NOT_RUN.values():
        for test in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / test).exists(), reason


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_the_test_that_runs_a_page_elsewhere_reads_it(page: str, test: str) -> None:
    assert (ROOT / page).name in (ROOT / test).read_text()
    assert blocks_of(page), "there is nothing to run elsewhere"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language_that_the_tests_know(page: str) -> None:
    """A block of `shell` or `python3` would be none that anything checks."""
    lines = (ROOT / page).read_text().splitlines()
    fences = fences_of(page)
    assert {one.language for one in fences} <= {*LANGUAGES, *DATA, *SHOWN}
    told = sum(block.said is not None for block in fences)
    assert 2 * (len(fences) + told) == sum(line.lstrip().startswith("```") for line in lines)


def test_a_page_that_says_something_else_is_found(cluster: LocalCluster, tmp_path: Path) -> None:
    with Reader(cluster, tmp_path) as reader:
        reader.follow(Block("page", 1, "python", "answer = 42\n", None))
        reader.follow(Block("page", 2, "python", "print('so', answer, 'it is')\n", "so ... it is\n"))
        with pytest.raises(AssertionError, match="and not"):
            reader.follow(Block("page", 3, "python", "print(answer)\n", "43\n"))
        with pytest.raises(AssertionError, match="page:4"):
            reader.follow(Block("page", 4, "sh", "antiphon kv no-such-table get answer\n", None))
        with pytest.raises(AssertionError, match="page:5"):
            reader.follow(Block("page", 5, "sh", "false\ntrue\n", None))


def test_the_program_of_the_page_on_traces(cluster: LocalCluster) -> None:
    """In a process of its own: who sets OpenTelemetry up does so for the process."""
    text = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (told,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "ANTIPHON_SERVERS": cluster.native},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", told)
