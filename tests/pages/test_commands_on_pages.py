"""Each command on a page of the documentation is one that there is, with options that it has."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from antiphon.cli.main import app
from tests.pages.blocks import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_COMMAND = re.compile(
    r"^(?:\$ |    )?(?:.*\| *)?(?:\S*/)?antiphon (?P<words>(?:(?! \d>)[^|&<>(;\n])*)", re.MULTILINE
)


def commands_on(page: Path) -> list[str]:
    """The words after `antiphon` of each line in a block of a shell."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```|^((?:    [^\n]*\n)+)", text, re.DOTALL | re.MULTILINE)
    return [found["words"] for pair in blocks for found in _COMMAND.finditer("".join(pair))]


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
