"""The page of `node.toml`, from the structs that it is read into and the remarks beside their fields."""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from antiphon.node.config import CONFIG_FILE, NodeConfig

# Written by `antiphon up` and `antiphon node`, not by people.
_NOT_SET = {"bootstrap", "dir", "format"}


_ABOUT = f"""\
# Settings of a node: {CONFIG_FILE}

`{CONFIG_FILE}` stands in the node's directory. `antiphon up` and `antiphon node add` write it; a change counts from the
node's next start. A name that is not known is refused, and so is a value out of bounds. Sizes are bytes."""


def node_settings() -> str:
    """A table for each section of the file."""
    return "\n\n".join([_ABOUT, *_section("", NodeConfig)])


def _section(name: str, struct: type[msgspec.Struct]) -> list[str]:
    remarks = _remarks(struct)
    hints = get_type_hints(struct)
    rows, below = [], []
    for field in msgspec.structs.fields(struct):
        inner = hints[field.name]
        if (
            isinstance(inner, type)
            and issubclass(inner, msgspec.Struct)
            and not isinstance(inner, GenericAlias)
        ):
            below += _section(f"{name}.{field.name}".strip("."), inner)
        elif name or field.name not in _NOT_SET:
            rows.append(f"| `{field.name}` | {_default(field)} | {remarks.get(field.name, '')} |")
    heading = f"## `[{name}]`" if name else "## At the top of the file"
    told = re.split(r"\n *\n *Attributes:", inspect.getdoc(struct) or "")[0]
    text = [] if told == "See the module's text." else [" ".join(told.split())]
    return [heading, *text, "\n".join(["| setting | default | |", "|---|---|---|", *rows]), *below]


def _default(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    elif field.default is not msgspec.NODEFAULT:
        value = field.default
    else:
        return "must be given"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, list):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return f"`{value:_}`" if isinstance(value, int) and value >= 10_000 else f"`{value}`"


def _remarks(struct: type) -> dict[str, str]:
    """What stands beside each field: in the docstring's `Attributes:`, or as a comment behind it or right above it."""
    source = textwrap.dedent(inspect.getsource(struct))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    above = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    (node,) = ast.parse(source).body
    assert_class = node if isinstance(node, ast.ClassDef) else None
    found = _attributes(inspect.getdoc(struct) or "")
    for statement in assert_class.body if assert_class else ():
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            first = next(line for line in range(statement.lineno, 0, -1) if line - 1 not in above)
            lines = range(first, (statement.end_lineno or statement.lineno) + 1)
            said = " ".join(comments[line] for line in lines if line in comments)
            if said:
                found[statement.target.id] = said.replace("|", "\\|")
    return found


def _attributes(doc: str) -> dict[str, str]:
    _, _, listed = doc.partition("Attributes:\n")
    return {
        match["name"]: " ".join(match["text"].split())
        for match in re.finditer(r"^    (?P<name>\w+): (?P<text>.*(?:\n     .*)*)", listed, re.MULTILINE)
    }
