"""Completion in shells: names of topics, tables, groups and nodes, which the cluster is asked for.

A shell that completes starts the command with `_ANTIPHON_COMPLETE` in its environment. Only then are arguments told how
they are completed. Whatever goes wrong, nothing is offered and nothing is said: there is a half typed line on the screen.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import typer
from typer.models import ParameterInfo

import antiphon
from antiphon.cli.declare import server_addresses
from antiphon.client.finding import SERVERS
from antiphon.client.local_folder import DEFAULT_DIR
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind

VARIABLE: Final = "_ANTIPHON_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
TIMEOUT_S: Final = 1.5

TOPICS: Final = frozenset({Kind.TOPIC})
TABLES: Final = frozenset({Kind.TABLE})
BOTH: Final = TOPICS | TABLES
# What arguments and options are called in commands, and what their values name.
_LOGS: Final = {
    "topic": BOTH,
    "topics": TOPICS,
    "table": TABLES,
    "tables": TABLES,
    "to_table": TABLES,
    "dead_letters": TOPICS,
}
_NAMED_BY: Final = {
    "topic": TOPICS,
    "table": TABLES,
    "replay": BOTH,
}  # commands whose argument is called `name`
_NODES: Final = frozenset({"node", "nodes"})
_COUNTS_NODES: Final = frozenset({"up", "capacity", "restore"})


def prepare(app: typer.Typer) -> None:
    """If a shell asks for completion, have names completed too."""
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return
    shell, _, what = asked.partition("_")
    if shell in SHELLS and what == "source":  # as click spells it; typer says source_bash
        os.environ[VARIABLE] = f"source_{shell}"
    teach(app)


def teach(app: typer.Typer) -> None:
    """Tell the arguments and options of all commands that name something how they are completed."""
    for callback, path in _callbacks(app, ()):
        for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
            complete = _completing(name, path)
            for info in getattr(parameter.annotation, "__metadata__", ()):
                if complete is not None and isinstance(info, ParameterInfo):
                    info.autocompletion = complete


def _callbacks(
    app: typer.Typer, path: tuple[str, ...]
) -> Iterator[tuple[Callable[..., Any], tuple[str, ...]]]:
    if app.registered_callback is not None and app.registered_callback.callback is not None and path:
        yield app.registered_callback.callback, path
    for command in app.registered_commands:
        if command.callback is not None:
            yield command.callback, (*path, command.name or command.callback.__name__)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _callbacks(group.typer_instance, (*path, group.name or ""))


Complete = Callable[[typer.Context, str], list[str]]


def _completing(name: str, path: tuple[str, ...]) -> Complete | None:
    if name == "name" and path[0] in _NAMED_BY and path[-1] != "create":
        return _offering(lambda db: _logs(db, _NAMED_BY[path[0]]))
    if name in _LOGS:
        return _offering(lambda db: _logs(db, _LOGS[name]))
    if name == "group" and path[0] == "groups":
        return _offering(_groups)
    if name in _NODES and path[-1] not in _COUNTS_NODES:
        return _offering(lambda db: [str(node.node_id) for node in db.metadata().nodes])
    return None


def _offering(names: "Callable[[antiphon.Client], list[str]]") -> Complete:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            directory = ctx.params.get("directory") or DEFAULT_DIR
            asked = ctx.params.get("servers") or os.environ.get(SERVERS)  # a group has no option for it
            servers = server_addresses(asked, Path(directory))
            with antiphon.connect(servers, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S) as db:
                return sorted(name for name in names(db) if name.startswith(incomplete))
        except Exception:  # noqa: BLE001 - whatever it is, a half typed line is no place to tell of it
            return []

    return complete


def _logs(db: "antiphon.Client", kinds: frozenset[Kind]) -> list[str]:
    return [topic.name for topic in db.metadata().topics if topic.kind in kinds and not is_internal(topic)]


def _groups(db: "antiphon.Client") -> list[str]:
    found: set[str] = set()
    for node in db.metadata().nodes:
        if node.alive:
            found.update(one.group for one in db.groups(node.node_id, timeout_s=TIMEOUT_S))
    return list(found)
