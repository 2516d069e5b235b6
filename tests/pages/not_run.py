"""The blocks that no test runs as they stand, each with the reason. What is not here is run."""

from typing import Final

from tests.pages.blocks import ROOT, Block, blocks_of

PAGES: Final = (
    "README.md",
    "docs/index.md",
    "docs/install.md",
    "docs/protocols.md",
    "docs/five-minutes.md",
    "docs/command-line.md",
    "docs/operations.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs" / "tasks").glob("*.md"))),
)

_INSTALLS: Final = "installs from the registry; tests/packaging does that"
_JOBS: Final = (
    "each command starts a Spark driver of its own; tests/spark/test_audit.py and test_replay.py and "
    "tests/cli/test_archive_commands.py run them"
)

# By page and first line of the block.
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    ("README.md", "make demo"): (
        "is this whole test run; tests/cli/test_demo.py runs the demo"
    ),
    ("README.md", ".venv/bin/antiphon audit"): _JOBS,
    ("docs/tasks/backup.md", "antiphon replay task-prices --as-of-time 2026-03-01T12:00:00Z --to-table task-prices-march"): (
        "names a time before the table; the block above it runs the same job"
    ),
    ("docs/tasks/backup.md", "antiphon archive run task-readings --to s3://bucket/archive --older-than 7d"): (
        "needs an object store; the block above it runs the same job"
    ),
    ("docs/install.md", "pip install antiphon"): _INSTALLS,
}  # fmt: skip


def runs(block: Block) -> bool:
    """Is it run, by `test_pages.py` or `test_spark_pages.py`?"""
    return (block.page, block.first_line) not in NOT_RUN


def wants_spark(page: str) -> bool:
    """Does a block of the page need Spark?"""
    return any(
        "antiphon.spark" in block.text or "spark." in block.text for block in blocks_of(page) if runs(block)
    )
