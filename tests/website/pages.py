"""Lays out a folder of pages: what stands in `docs/`, two pages of the root, and the reference that the code makes."""

import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Final

from tests.website.reference import reference_pages

# Pages of the root, and where they are on the site.
OF_THE_ROOT: Final = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
SOURCE: Final = "https://github.com/antiphon/antiphon/blob/main"
# Pages that the code makes link to pages of `docs/`; pages of `docs/` name them by where they are in this folder.
REFERENCE: Final = "reference"

_FENCE: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_COMMENT: Final = re.compile(r"^<!--.*?-->\n", re.DOTALL | re.MULTILINE)


class BrokenLinkError(Exception):
    """A page links to something that is not in the tree."""


def lay_out(root: Path, folder: Path) -> None:
    """Write every page of the tree `root` below `folder`, which is made anew. Raises BrokenLinkError."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "docs", folder)
    made = reference_pages()
    pages = {
        f"docs/{page.relative_to(folder)}": str(page.relative_to(folder)) for page in folder.rglob("*.md")
    }
    for source, target in {**pages, **OF_THE_ROOT}.items():
        text = (root / source).read_text(encoding="utf-8")
        (folder / target).write_text(as_page(text, source, target, root, set(made)), encoding="utf-8")
    (folder / REFERENCE).mkdir(exist_ok=True)
    for name, text in made.items():
        (folder / REFERENCE / name).write_text(text, encoding="utf-8")


def as_page(text: str, source: str, target: str, root: Path, made: set[str]) -> str:
    """A page's text as the site generator needs it: links that lead somewhere there, and blank lines around tables."""

    def link(match: re.Match[str]) -> str:
        place = _placed(match["target"], source, target, root, made)
        return f"]({place}{match['anchor'] or ''})"

    parts = _FENCE.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = _LINK.sub(link, _with_blank_lines(_COMMENT.sub("\n", parts[i])))
    return "".join(parts)


def _placed(link: str, source: str, target: str, root: Path, made: set[str]) -> str:
    """Where a link of the page `source`, which is `target` on the site, leads there."""
    if re.match(r"[a-z]+:", link):
        return link
    file = PurePosixPath(os.path.normpath(PurePosixPath(source).parent / link))
    if file.parts[:2] == ("docs", REFERENCE) and file.name in made:
        return _from(target, str(file.relative_to("docs")))
    if not (root / file).exists():
        raise BrokenLinkError(f"{source} links to {link}, and there is no {file}")
    if str(file) in OF_THE_ROOT:
        return _from(target, OF_THE_ROOT[str(file)])
    if file.parts[0] == "docs":
        return _from(target, str(file.relative_to("docs")))
    return f"{SOURCE}/{file}"


def _from(page: str, other: str) -> str:
    return os.path.relpath(other, PurePosixPath(page).parent)


def _with_blank_lines(text: str) -> str:
    """Blank lines where a table or a list begins right after a line of prose, which not every generator takes."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        begins = line.startswith("|") or re.match(r"([-*]|\d+\.) ", line)
        goes_on = before.startswith("|") if line.startswith("|") else re.match(r"([-*]|\d+\.) |  ", before)
        if begins and before.strip() and not goes_on:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)
