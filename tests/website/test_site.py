"""The site is built without a warning, has everything that it refers to, and loads nothing from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import antiphon
from antiphon.cli.main import app
from antiphon.kafka.apis import APIS
from tests.pages.blocks import ROOT
from tests.website.pages import SOURCE, BrokenLinkError, as_page, lay_out
from tests.website.reference import PYTHON_PAGES, reference_pages

pytestmark = pytest.mark.packaging

# What is said in a sentence, is a module, or stands under its other name.
NOT_LISTED = {"ABSENT", "OffsetMismatch", "__version__", "aio"}


def build(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--config-file",
            str(config),
            *words,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, and what a build of them needs besides, as `make site` has them."""
    made = tmp_path_factory.mktemp("tree")
    lay_out(ROOT, made / "build" / "pages")
    shutil.copytree(ROOT / "docs" / "theme", made / "docs" / "theme")
    shutil.copy(ROOT / "mkdocs.yml", made)
    (made / "src").symlink_to(ROOT / "src")
    return made


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing_from_elsewhere(tree: Path) -> None:
    done = build(tree / "mkdocs.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page: page.read_text() for page in (tree / "site").rglob("*.html")}
    assert len(pages) > 80
    for page, text in pages.items():
        assert "default-src 'self' 'unsafe-inline' data: blob:" in text, page
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)"', text)
        assert not [one for pair in loaded for one in pair if "//" in one], page
        assert ('mermaid.tiny.js"></script>' in text) == ('class="mermaid"' in text), page
    assert "expected_offset" in pages[tree / "site" / "reference" / "python-client.html"]
    assert (tree / "site" / "search" / "search_index.json").stat().st_size > 500_000


@pytest.mark.parametrize("link", ["page.md#nowhere", "nowhere.md"])
def test_a_link_that_leads_nowhere_is_an_error(link: str, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "page.md").write_text(f"# Page\n\n[there]({link})\n")
    places = f"docs_dir: {tmp_path}/pages\nsite_dir: {tmp_path}/site\nnav: [page.md]\nplugins: [search]\n"
    (tree / "one.yml").write_text(f"INHERIT: mkdocs.yml\n{places}")
    done = build(tree / "one.yml")
    assert done.returncode != 0
    assert link.rpartition("#")[2] in done.stdout + done.stderr


def test_links_lead_to_pages_or_to_the_source() -> None:
    def links(text: str, source: str, target: str) -> str:
        return as_page(text, source, target, ROOT, {"errors.md"})

    assert links("[a](tables.md#sessions)", "docs/kafka.md", "kafka.md") == "[a](tables.md#sessions)"
    assert links("[a](../tables.md)", "docs/tasks/watch.md", "tasks/watch.md") == "[a](../tables.md)"
    assert links("[a](../../CONTRIBUTING.md#fuzz)", "docs/decisions/0001.md", "decisions/0001.md") == (
        "[a](../contributing.md#fuzz)"
    )
    assert links("[a](docs/tables.md)", "CHANGELOG.md", "changelog.md") == "[a](tables.md)"
    assert (
        links("[a](../examples/table.py)", "docs/kafka.md", "kafka.md") == f"[a]({SOURCE}/examples/table.py)"
    )
    assert links("[a](reference/errors.md)", "docs/index.md", "index.md") == "[a](reference/errors.md)"
    assert (
        links("```text\n[a](nowhere.md)\n```", "docs/kafka.md", "kafka.md") == "```text\n[a](nowhere.md)\n```"
    )
    with pytest.raises(BrokenLinkError, match=r"no docs/nowhere\.md"):
        links("[a](nowhere.md)", "docs/kafka.md", "kafka.md")


def test_tables_and_lists_get_a_blank_line_before_them() -> None:
    text = "<!-- made: kinds -->\n| a |\n|---|\n| 1 |\nso:\n- one\n- two\n  and more\n- three\n"
    assert as_page(text, "docs/kafka.md", "kafka.md", ROOT, set()) == (
        "\n| a |\n|---|\n| 1 |\nso:\n\n- one\n- two\n  and more\n- three\n"
    )


def test_the_reference_has_all_that_there_is() -> None:
    pages = reference_pages()
    listed = {name for _, _, names in PYTHON_PAGES.values() for name in names}
    errors = {
        name for name in antiphon.__all__ if isinstance(getattr(antiphon, name), type)
        and issubclass(getattr(antiphon, name), antiphon.AntiphonError)
    }  # fmt: skip
    assert {f"antiphon.{name}" for name in set(antiphon.__all__) - errors - NOT_LISTED} <= listed
    for name in set(antiphon.errors.ERRORS) - {"error"}:
        assert f"| `{name}` |" in pages["errors.md"]
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert re.search(rf"^## antiphon {name}( |$)", pages["commands.md"], re.MULTILINE)
    assert "| `--if-absent` | Only if the key is not there. |" in pages["commands.md"]
    assert "| `bytes_per_s` | `8_388_608` | 0: only on request |" in pages["node-settings.md"]
    assert "| `authentication` | `false` | clients of every listener must say" in pages["node-settings.md"]
    assert "| `commit` | `quorum` |" in pages["topic-settings.md"]
    assert all(f"| {api.name} |" in pages["kafka-apis.md"] for api in APIS.values())
