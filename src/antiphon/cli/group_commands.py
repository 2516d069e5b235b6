"""`antiphon groups`: groups of consumers and share groups, who is in them, and how far they are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from antiphon.cli.declare import COMMON, CommonOptions, command, group
from antiphon.cli.output import A_MOMENT_S, note_silent, print_json, print_table, progress, unsure, usage
from antiphon.errors import AntiphonError
from antiphon.model.groups import Assigned, GroupKind, GroupPosition, GroupsReply, GroupState, merged
from antiphon.tools.cluster_health import NODE_TIMEOUT_S, from_each_node

if TYPE_CHECKING:
    import antiphon

HEADINGS = ("GROUP", "KIND", "STATE", "MEMBERS", "NODE")
Silent = list[tuple[int, str]]
"""Nodes that do not answer, with the reason."""

group(
    "groups",
    "Groups of Kafka's clients: consumer groups of both protocols, and share groups.",
    "Example: antiphon groups list",
)


@command("groups list", "antiphon groups list --kind share")
def list_groups(
    kind: Annotated[
        GroupKind | None, typer.Option(help="Only groups of this kind; all, where none is named.")
    ] = None,
    common: CommonOptions = COMMON,
) -> None:
    """List groups with their kind, state and number of members, and the node that coordinates each."""
    with (
        progress("asking the nodes", after_s=A_MOMENT_S),
        common.connect() as db,
    ):
        found, silent = _all(db)
    rows = [
        (one.group, str(one.kind), one.state, one.member_count, node)
        for node, one in found
        if kind in {None, one.kind}
    ]
    note_silent(silent)
    print_table(HEADINGS, rows, as_json=common.as_json)
    if silent:
        raise typer.Exit(1)


@command("groups describe", "antiphon groups describe billing")
def describe(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")],
    common: CommonOptions = COMMON,
) -> None:
    """Show one group: its members with what they read, and where it is in each shard, with its lag.

    Of a share group also how many records its members work on (locked), as the leaders of the shards know it.
    """
    with (
        progress("asking the nodes", after_s=A_MOMENT_S),
        common.connect() as db,
    ):
        node, found, silent = _one(db, group)
    note_silent(silent)
    if common.as_json:
        print_json(_plain(node, found))
    else:
        _show(node, found)
    if silent:
        raise typer.Exit(1)


# -- asking -------------------------------------------------------------------------------------------------------


def _all(db: "antiphon.Client") -> tuple[list[tuple[int, GroupState]], Silent]:
    found, silent = from_each_node(db, lambda node: db.groups(node, timeout_s=NODE_TIMEOUT_S))
    return sorted(found, key=lambda one: (one[1].group, one[0])), silent


def _one(db: "antiphon.Client", name: str) -> tuple[int, GroupState, Silent]:
    """The group with all of its positions, and the node that coordinates it."""
    replies: list[GroupsReply] = []
    silent: Silent = []
    coordinator = -1
    for node in db.metadata().nodes:
        try:
            reply = db.group_at(node.node_id, name, timeout_s=NODE_TIMEOUT_S)
            if reply.groups:
                coordinator, reply = node.node_id, _whole(db, node.node_id, reply)
            replies.append(reply)
        except AntiphonError as error:
            silent.append((node.node_id, error.message))
    found = merged(replies)
    if found is None:
        usage(f"there is no group {name!r}{unsure(silent)}", unknown="group")
    return coordinator, found, silent


def _whole(db: "antiphon.Client", node_id: int, reply: GroupsReply) -> GroupsReply:
    """The same with the positions that one answer has no room for."""
    (state,) = reply.groups
    positions = list(state.positions)
    while len(positions) < state.position_count:
        more = db.group_at(node_id, state.group, start=len(positions), timeout_s=NODE_TIMEOUT_S)
        if not more.groups or not more.groups[0].positions:
            break  # there are fewer by now
        positions += more.groups[0].positions
    return GroupsReply((msgspec.structs.replace(state, positions=tuple(positions)),), reply.held)


# -- showing ------------------------------------------------------------------------------------------------------


def _lag(positions: Sequence[GroupPosition]) -> int | None:
    """Of all that are known; None: of none is."""
    known = [one.lag for one in positions if one.lag is not None]
    return sum(known) if known else None


def _known(figure: int) -> int | None:
    return None if figure < 0 else figure


def _plain(node: int, found: GroupState) -> dict[str, Any]:
    is_share = found.kind is GroupKind.SHARE
    return {
        "group": found.group,
        "kind": str(found.kind),
        "state": found.state,
        "epoch": _known(found.epoch),
        "node": node,
        "lag": _lag(found.positions),
        "members": [
            {
                "member_id": one.member_id,
                "instance_id": one.instance_id or None,
                "client_id": one.client_id,
                "client_host": one.client_host,
                "epoch": one.epoch,
                "topics": list(one.topics),
                "assigned": {topic: list(shards) for topic, shards in one.assigned},
            }
            for one in found.members
        ],
        "positions": [
            {
                "topic": one.topic,
                "shard": one.shard,
                "offset": one.offset,
                "end": _known(one.end),
                "lag": one.lag,
                **({"done": one.done, "locked": _known(one.locked)} if is_share else {}),
            }
            for one in found.positions
        ],
    }


def _show(node: int, found: GroupState) -> None:
    is_share = found.kind is GroupKind.SHARE
    lag = _lag(found.positions)
    facts = {
        "group": found.group,
        "kind": found.kind,
        "state": found.state,
        "epoch": "-" if found.epoch < 0 else found.epoch,
        "coordinator": f"node {node}",
        "lag": "-" if lag is None else lag,
        **({"locked": sum(max(0, one.locked) for one in found.positions)} if is_share else {}),
    }
    for name, value in facts.items():
        typer.echo(f"{name}: {value}")
    typer.echo("")
    if found.members:
        rows = [
            (
                one.member_id,
                one.instance_id or "-",
                one.client_id or "-",
                one.client_host,
                one.epoch,
                _places(one.assigned),
            )
            for one in found.members
        ]
        print_table(("MEMBER", "INSTANCE", "CLIENT", "HOST", "EPOCH", "SHARDS"), rows, as_json=False)
    else:
        typer.echo("no members")
    typer.echo("")
    if not found.positions:
        typer.echo("it has read nothing yet" if is_share else "no offsets are committed")
    elif is_share:
        told = [
            (one.topic, one.shard, one.offset, _known(one.end), one.lag, one.done, _known(one.locked))
            for one in found.positions
        ]
        print_table(("TOPIC", "SHARD", "START", "END", "LAG", "DONE", "LOCKED"), told, as_json=False)
    else:
        offsets = [(one.topic, one.shard, one.offset, _known(one.end), one.lag) for one in found.positions]
        print_table(("TOPIC", "SHARD", "OFFSET", "END", "LAG"), offsets, as_json=False)


def _places(assigned: Assigned) -> str:
    """`topic/0-3,7`, one after the other."""
    return ", ".join(f"{topic}/{_runs(shards)}" for topic, shards in assigned) or "-"


def _runs(shards: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for shard in sorted(shards):
        if runs and runs[-1][1] == shard - 1:
            runs[-1][1] = shard
        else:
            runs.append([shard, shard])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
