"""Each command on a page of the documentation is one that there is, with options that it has."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from antiphon.cli.main import app
from tests.pages.blocks import LANGUAGES, ROOT, fences_of

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = set(LANGUAGES) - {"python"}
_COMMAND = re.compile(
    r"^(?:\$ |    )?(?:.*\| *)?(?:\S*/)?antiphon (?P<words>(?:(?! \d>)[^|&<>(;\n])*)", re.MULTILINE
)


_INDENTED = re.compile(r"^((?:    [^\n]*\n)+)", re.MULTILINE)
_TARGET = re.compile(r"(?:^|&& )make ([a-z][a-z-]*)(?=[ \n])", re.MULTILINE)
_TARGET_IN_A_SENTENCE = re.compile(r"`make ([a-z][a-z-]*)(?=[ `])")


def commands_on(page: Path) -> list[str]:
    """The words after `antiphon` of each line in a block of a shell, fenced or indented."""
    blocks = (*shells_on(page), *_INDENTED.findall(page.read_text()))
    return [found["words"] for block in blocks for found in _COMMAND.finditer(block)]


def shells_on(page: Path) -> list[str]:
    return [one.text for one in fences_of(str(page.relative_to(ROOT))) if one.language in SHELLS]


def targets_on(page: Path) -> set[str]:
    """What `make` is to make, in blocks of a shell and between backticks."""
    in_blocks = {name for block in shells_on(page) for name in _TARGET.findall(block)}
    return in_blocks | set(_TARGET_IN_A_SENTENCE.findall(page.read_text()))


def parse(words: str) -> str:
    """The command's path, once its words are parsed as the program does; HASH and the like stand for something.

    Raises typer's errors.
    """
    command = typer.main.get_command(app)
    given = ["1" if word.isupper() else word for word in shlex.split(words, comments=True)]
    context = command.make_context("antiphon", given)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return str(context.command_path)


@pytest.mark.parametrize("page", [page for page in PAGES if commands_on(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_are_there(page: Path) -> None:
    wrong = {}
    for words in commands_on(page):
        try:
            parse(words)
        except (typer.Exit, typer.Abort):
            pass
        except Exception as error:  # noqa: BLE001 - whatever typer says is shown
            wrong[words] = str(error)
    assert wrong == {}


def test_a_command_that_is_not_there_is_found() -> None:
    assert parse("kv default put answer 42 --if-absent").endswith("put")
    for words in ("no-such-command", "audit --no-such-option", "kv default put answer"):
        with pytest.raises(Exception, match=r"No such|Missing"):
            parse(words)


@pytest.mark.parametrize("page", [page for page in PAGES if targets_on(page)], ids=lambda page: page.name)
def test_what_make_is_to_make_is_there(page: Path) -> None:
    there = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets_on(page) - there == set()


def test_a_target_of_make_is_found() -> None:
    assert _TARGET.findall("make test # now\ncd antiphon && make no-such\necho make it\n") == [
        "test",
        "no-such",
    ]
    assert _TARGET_IN_A_SENTENCE.findall("as `make there` does, and make do with it\n") == ["there"]
