"""`antiphon node settings`: settings of nodes that are changed while they run."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import pairs_of, print_json, print_table, usage
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.model.node_settings import (
    ALL_NODES,
    NODE_SETTINGS,
    AlterNodeSettings,
    NodeSettings,
    NodeSettingsReply,
    check_settings,
    find_setting,
)

if TYPE_CHECKING:
    import antiphon

ANSWER_S: Final = 10.0
FROM: Final = {
    "node": "set for this node",
    "all": "set for all nodes",
    "file": "its node.toml",
    "default": "default",
}


@command("node settings", "antiphon node settings --all --set log_level=debug")
def node_settings(
    node: Annotated[int | None, typer.Option("--node", help="Of this node.")] = None,
    for_all: Annotated[bool, typer.Option("--all", help="What is set for all nodes together.")] = False,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set this; may be repeated.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NAME", help="Take this away again; may be repeated."),
    ] = None,
    common: CommonOptions = COMMON,
) -> None:
    """List the settings of nodes that can be changed while they run, or change them.

    What is set for one node goes before what is set for all of them, this before the node's node.toml. It is kept in the
    cluster, holds at once and over restarts, and for nodes that come later.
    """
    if node is not None and for_all:
        usage("give one of --node and --all")
    changes = _changes(given or [], reset or [])
    if changes and node is None and not for_all:
        usage("say whose settings these are: --node NODE, or --all")
    with common.connect() as db:
        if changes:
            scope = ALL_NODES if node is None else node
            db.run(db.aio.administer(AlterNodeSettings(scope, changes)))
            _show_change(db, scope, changes, as_json=common.as_json)
        elif for_all:
            _show_all(_asked(db, None)[0], as_json=common.as_json)
        else:
            _show(_asked(db, node), as_json=common.as_json)


def _changes(given: list[str], reset: list[str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for name, value in pairs_of(given, "--set"):
        _add(changes, name.strip(), value.strip())
    for name in reset:
        _add(changes, name.strip(), None)
    check_settings(changes)
    return changes


def _add(changes: dict[str, str | None], name: str, value: str | None) -> None:
    found = find_setting(name).name
    if found in changes:
        usage(f"{found} is named twice")
    changes[found] = value


def _asked(db: "antiphon.Client", node: int | None) -> list[NodeSettingsReply]:
    """What a node answers, or each that is alive."""
    nodes = db.metadata().nodes
    if node is not None:
        if all(one.node_id != node for one in nodes):
            known = ", ".join(str(one.node_id) for one in nodes)
            raise InvalidRequestError(f"there is no node {node}; there are {known}", unknown="node")
        return [_of(db, node)]
    alive = [one.node_id for one in nodes if one.alive]
    if not alive:
        raise UnavailableError("no node is alive, as far as is known (`antiphon status`)")
    return [_of(db, one) for one in alive]


def _of(db: "antiphon.Client", node: int) -> NodeSettingsReply:
    return db.run(db.aio.coordinators.node_settings(node, timeout_s=ANSWER_S))


def _show_change(db: "antiphon.Client", scope: int, changes: dict[str, str | None], *, as_json: bool) -> None:
    told = _asked(db, None)[0]
    own = [
        (entry.node, name)
        for entry in told.entries
        for name in changes
        if scope == ALL_NODES != entry.node and name in entry.values
    ]
    if as_json:
        print_json(
            {
                "node": None if scope == ALL_NODES else scope,
                "set": {name: value for name, value in changes.items() if value is not None},
                "reset": [name for name, value in changes.items() if value is None],
                "nodes_with_own": sorted({number for number, _ in own}),
            }
        )
        return
    whose = "all nodes" if scope == ALL_NODES else f"node {scope}"
    for name, value in changes.items():
        typer.echo(f"{name} is reset for {whose}" if value is None else f"{name} is {value} for {whose}")
    for number, name in own:
        typer.echo(
            f"node {number} keeps a value of its own: `antiphon node settings --node {number} --reset {name}` takes it away",
            err=True,
        )


def _show_all(told: NodeSettingsReply, *, as_json: bool) -> None:
    entry = next((one for one in told.entries if one.node == ALL_NODES), NodeSettings(ALL_NODES, {}))
    plain = {name: _plain(name, value) for name, value in entry.values.items()}
    print_table(("SETTING", "VALUE"), list(entry.values.items()), plain, as_json=as_json)


def _show(found: list[NodeSettingsReply], *, as_json: bool) -> None:
    """Each setting once, or once for each value that nodes have."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    names = list(dict.fromkeys(name for told in found for name in told.values))
    for name in names:
        for told in found:
            value, place = told.values.get(name, (("-", "-"),))[0]
            rows.setdefault((name, value, place), []).append(told.node)
    plain = [
        {"setting": name, "value": _plain(name, value), "from": place, "nodes": nodes}
        for (name, value, place), nodes in rows.items()
    ]
    shown = [(name, value, FROM.get(place, place), nodes) for (name, value, place), nodes in rows.items()]
    print_table(("SETTING", "VALUE", "FROM", "NODES"), shown, plain, as_json=as_json)


def _plain(name: str, value: str) -> Any:
    """A value as its type, where this version knows the setting."""
    setting = NODE_SETTINGS.get(name)
    return value if setting is None or setting.problem(value) else setting.read(value)
