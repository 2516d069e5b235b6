"""The code on the pages runs as it stands there, page by page, and prints what the page says that it prints."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.tools.local_cluster import LocalCluster
from tests.pages.blocks import ROOT, Block, Reader, blocks_of
from tests.pages.not_run import NOT_RUN, PAGES, runs, wants_spark

pytestmark = pytest.mark.cluster

PLAIN = [page for page in PAGES if not wants_spark(page)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(3) as started:
        yield started


@pytest.mark.parametrize("page", [page for page in PLAIN if any(map(runs, blocks_of(page)))])
def test_the_code_of_a_page(page: str, cluster: LocalCluster, tmp_path: Path) -> None:
    with Reader(cluster, tmp_path) as reader:
        for block in filter(runs, blocks_of(page)):
            reader.follow(block)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        pytest.param(block, NOT_RUN[page, block.first_line], id=f"{page}:{block.line}")
        for page in PAGES
        for block in blocks_of(page)
        if not runs(block)
    ],
)
def test_code_that_is_not_run(block: Block, reason: str) -> None:
    pytest.skip(reason)


def test_the_list_of_what_is_not_run_is_current() -> None:
    there = {(page, block.first_line) for page in PAGES for block in blocks_of(page)}
    assert set(NOT_RUN) - there == set()


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
