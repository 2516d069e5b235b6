"""What code on a page names of antiphon, looked up without running it: modules, attributes and keyword arguments."""

import ast
import importlib
import inspect
from typing import Any, Final

import antiphon
from tests.pages.blocks import Block

PACKAGE: Final = "antiphon"


class UnknownNameError(Exception):
    """There is no such name."""


def wrong_names(blocks: list[Block]) -> list[str]:
    """What the Python blocks of a page name that antiphon does not have; what one imports, those below it have too.

    `db` is a client on every page. Raises SyntaxError.
    """
    known: dict[str, Any] = {"db": antiphon.Client}
    wrong = []
    for block in blocks:
        place = f"{block.page}:{block.line}"
        tree = ast.parse(block.text, place)
        for node in sorted(
            (node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno
        ):
            try:
                _look(node, known)
            except UnknownNameError as error:
                wrong.append(f"{place}: {error}")
    return list(dict.fromkeys(wrong))


def _look(node: ast.AST, known: dict[str, Any]) -> None:
    match node:
        case ast.Import(names):
            for alias in names:
                if _is_ours(alias.name):
                    found = _module(alias.name)
                    known[alias.asname or PACKAGE] = found if alias.asname else antiphon
        case ast.ImportFrom(str(module), names, 0) if _is_ours(module):
            for alias in names:
                known[alias.asname or alias.name] = _attribute(_module(module), alias.name)
        case ast.Attribute():
            _value(node, known)
        case ast.Call(function, _, keywords):
            called = _value(function, known)
            if called is not None:
                _check_keywords(called, [one.arg for one in keywords if one.arg], ast.unparse(function))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UnknownNameError(f"no module {name}: {error}") from None


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        if inspect.ismodule(owner):
            return _module(f"{owner.__name__}.{name}")
        raise UnknownNameError(f"{getattr(owner, '__name__', owner)} has no {name}") from None


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """What an expression of names and dots is, as far as that is ours; None for anything else."""
    match node:
        case ast.Name(name):
            return known.get(name)
        case ast.Attribute(owner, name):
            found = _value(owner, known)
            return None if found is None else _attribute(found, name)
    return None


def _check_keywords(called: Any, given: list[str], text: str) -> None:
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return
    takes = {one.name for one in parameters if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    if missing := [name for name in given if name not in takes]:
        raise UnknownNameError(f"{text}() takes no {', '.join(missing)}")
