"""What can be known of a block without running it: names in Python, settings in TOML, and whether it can be read at all."""

import json
import tomllib
from pathlib import Path

import pytest

from antiphon.errors import AntiphonError
from antiphon.node.config import load_config
from antiphon.tools.acl_file import read_acls
from tests.pages.blocks import DATA, Block, blocks_of, fences_of
from tests.pages.names import wrong_names
from tests.pages.not_run import PAGES

MADE_WITH = 'cluster_id = "c"\nnode_id = 0\nnodes = [{id = 0, native = "node-0:7400"}]\n'
DATA_BLOCKS = [block for page in PAGES for block in fences_of(page) if block.language in DATA]


def code_of(page: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == "python"]


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)])
def test_python_names_what_there_is(page: str) -> None:
    assert wrong_names(code_of(page)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import antiphon\nantiphon.conect()",
        "import antiphon.no_such_module",
        "from antiphon.recipes import Lock, NoSuchLock",
        "from antiphon.spark import jobs\njobs.audit(spark, 'node-0:7400', topic=['flights'])",
        "db.create_topics('flights')",
        "db.create_topic('flights', shard=4)",
    ],
)
def test_a_name_that_is_not_there_is_found(text: str) -> None:
    assert len(wrong_names([Block("page", 1, "python", text, None)])) == 1


def test_names_that_are_there_are_none() -> None:
    text = "import antiphon\nfrom antiphon.recipes import Lock\nantiphon.connect(servers='', timeout_s=1).anything(x=1)"
    assert wrong_names([Block("page", 1, "python", text, None)]) == []


def read(block: Block, folder: Path) -> None:
    """Read it as whoever it is for does. Raises ValueError, AntiphonError."""
    if block.language == "json":
        json.loads(block.text)
        return
    found = tomllib.loads(block.text)
    if "acl" in found:
        (folder / "acls.toml").write_text(block.text)
        assert read_acls(folder / "acls.toml")
    elif "tool" not in found:  # pytest's, which tests/testing/test_plugin.py gives to it
        (folder / "node.toml").write_text(MADE_WITH + block.text)
        load_config(folder)


@pytest.mark.parametrize("block", DATA_BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_file_on_a_page_is_read(block: Block, tmp_path: Path) -> None:
    read(block, tmp_path)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("json", '{"a": 1,}'),
        ("toml", "[scrub]\nbytes_per_second = 1\n"),
        ("toml", "[scrub]\ninterval_s = 'a week'\n"),
        ("toml", "[[acl]]\nprincipal = 'User:alice'\n"),
        ("toml", "scrub\n"),
    ],
)
def test_a_file_that_is_wrong_is_found(language: str, text: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, AntiphonError)):
        read(Block("page", 1, language, text, None), tmp_path)
