"""Is a command one that the program has, with options and values that it takes? It is parsed and not run."""

import re
import shlex
from functools import cache
from typing import Any

import typer.main

from antiphon.cli.main import app

TO_CHOOSE = re.compile(r"\b[A-Z]{2,}\b")  # NAME, NUMBER: what a user fills in


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def parse(command: str) -> str:
    """The words of the command behind `antiphon`; fails as the program does where they are wrong.

    What is to be chosen becomes 1, which is a number and a name; what a shell does behind `>` or `|` is left out.
    """
    words = shlex.split(TO_CHOOSE.sub("1", command))
    assert words.pop(0) == "antiphon", command
    for sign in (">", "|", ";", "then"):
        words = words[: words.index(sign)] if sign in words else words
    found = _program()
    path: list[str] = []
    context = None
    while hasattr(found, "commands"):
        if words == ["--help"]:
            return " ".join(path)
        context = found.make_context(path[-1] if path else "antiphon", words, parent=context)
        name, found, words = found.resolve_command(context, [*context._protected_args, *context.args])
        path.append(name)
    if words != ["--help"]:
        found.make_context(path[-1], words, parent=context)
    return " ".join(path)
