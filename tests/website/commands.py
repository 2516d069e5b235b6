"""The page of the command line, from the program itself."""

import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from antiphon.cli.main import app

_ABOUT: Final = """\
`antiphon COMMAND --help` prints the same. Commands that ask a cluster find it by `--servers`, by the variable
`ANTIPHON_SERVERS`, or by `--dir`. Exit codes: 0 done, 1 refused or failed (one line on stderr says why and what to do),
2 the words of the command are off, 130 ended by ctrl-C."""


def commands() -> str:
    """Every command with its arguments, options and example."""
    parts = ["# Commands", _ABOUT]
    parts += [
        part
        for path, command in _walk("antiphon", typer.main.get_command(app))
        for part in _told(path, command)
    ]
    return "\n\n".join(parts)


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Commands below this one, in the order of its help; groups only by their commands."""
    for name, below in getattr(command, "commands", {}).items():
        if below.hidden:
            continue
        if hasattr(below, "commands"):
            arguments = " ".join(_metavar(one) for one in below.params if one.param_type_name == "argument")
            yield from _walk(f"{path} {name} {arguments}".strip(), below)
        else:
            yield f"{path} {name}", below


def _told(path: str, command: Any) -> list[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    words = " ".join([path, *(_metavar(one) for one in arguments)])
    parts = [f"## {path}", f"```text\n{words}{' [OPTIONS]' if options else ''}\n```", _plain(command.help)]
    rows = [f"| `{_metavar(one)}` | {_plain(one.help)} | |" for one in arguments if one.help]
    rows += [f"| {_names(one)} | {_plain(one.help)} | {_default(one)} |" for one in options]
    if rows:
        parts.append("\n".join(["| option | meaning | default |", "|---|---|---|", *rows]))
    if command.epilog:
        parts.append(_plain(re.sub(r"^(Example: )(.*)$", r"\1`\2`", command.epilog, flags=re.DOTALL)))
    return parts


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name or "").upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _names(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.secondary_opts:
        names += ", " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    return names if option.is_flag or not option.metavar else f"{names} `{option.metavar}`"


def _default(option: Any) -> str:
    default = option.default
    if callable(default) or default in {None, False, ()} or (isinstance(default, list) and not default):
        return ""
    return f"`{default}`"


def _plain(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")
