"""`antiphon node recover`: a cluster that lost most of its voters goes on from what one of them has. Offline, and loud."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon import system
from antiphon.cli.declare import JsonOption, command
from antiphon.cli.output import say, usage

if TYPE_CHECKING:
    from antiphon.node.recovering import Looked

CONFIRMED = "--lose-what-only-lost-voters-had"


@command("node recover", "antiphon node recover --dir /var/lib/antiphon")
def node_recover(
    directory: Annotated[
        Path,
        typer.Option("--dir", help="Directory of a stopped voter, whose log the cluster is to go on from."),
    ],
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--other", help="Directory of another voter that is left, to be compared; may be repeated."
        ),
    ] = None,
    confirmed: Annotated[
        bool,
        typer.Option(CONFIRMED, help="Do it. Without this option the command only says what it would do."),
    ] = False,
    joins: Annotated[
        bool,
        typer.Option(
            "--join",
            help="Instead of a recovery: let this node join a cluster that was recovered from another voter.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make one voter the only one, when most voters of the cluster lost their directories. For no other case.

    Changes of the metadata that only the lost voters had are gone: topics made, members moved, settings changed, leaders
    elected by live sets. Records of topics are not touched. Stop all nodes first.
    """
    from antiphon.coordination.recovery import longest
    from antiphon.log.disk import RealDisk
    from antiphon.node.recovering import join, look, recover

    disk = RealDisk()
    path = str(directory.absolute())
    if joins:
        if others or confirmed:
            usage("--join goes with --dir alone")
        joined = join(disk, path)
        say(
            f"Node {joined.node_id} let go of its log of `__cluster` (up to offset {joined.head.offset}); its replicas are "
            "as they were. Start it",
            {"node": joined.node_id, "joins": True, "log_end": joined.head.offset},
            as_json=as_json,
        )
        return
    rest = [str(other.absolute()) for other in others or ()]
    found = {name: look(disk, name) for name in (path, *rest)}
    best = longest({name: one.head for name, one in found.items()})
    if not as_json:
        _print_found(found, path, best)
    if not confirmed:
        told = {"recovered": False, "longest": best, "directories": [_plain(one) for one in found.values()]}
        text = f"Nothing was changed. To do it: antiphon node recover --dir {best} {CONFIRMED}"
        say(text, told, as_json=as_json)
        return
    recovery = recover(disk, path, rest, system.wall_ms())
    say(
        f"Node {recovery.node} is the only voter now, in term {recovery.term}; what others had from offset {recovery.at} on "
        "is lost.\nStart it, then the nodes that never voted. Voters that come back are refused, and say what to do.\n"
        "Then: `antiphon node voters --add NODE` until there are three; `antiphon node drain NODE` for each node that does "
        "not come back; `antiphon status` names shards that have no leader",
        {"recovered": True, "node": recovery.node, "term": recovery.term, "at": recovery.at},
        as_json=as_json,
    )


def _print_found(found: dict[str, "Looked"], path: str, best: str) -> None:
    """What is known, and what is not."""
    for name, one in found.items():
        state = one.state
        checkpoint = "none" if state.checkpoint is None else f"offset {state.checkpoint.begin}"
        longest_of = " (the longest)" if name == best and len(found) > 1 else ""
        typer.echo(
            f"{name}{longest_of}: node {one.node_id} of cluster {one.cluster_id}\n"
            f"  promised term {one.term}; log up to offset {one.head.offset}, its last entry of term {one.head.term}\n"
            f"  surely committed up to offset {one.settled}; last checkpoint: {checkpoint}\n"
            f"  voters: {_voters(one)}; {len(state.nodes)} nodes, {len(state.topics)} topics and tables, "
            f"{len(state.shards)} shards"
        )
    typer.echo(
        f"What other voters committed behind offset {found[path].head.offset} cannot be known here, and is lost."
    )


def _voters(one: "Looked") -> str:
    return ", ".join(map(str, one.voters)) or "the founders of node.toml"


def _plain(one: "Looked") -> dict[str, Any]:
    checkpoint = one.state.checkpoint
    return {
        "dir": one.path,
        "node": one.node_id,
        "cluster": one.cluster_id,
        "term": one.term,
        "log_end": one.head.offset,
        "last_term": one.head.term,
        "committed": one.settled,
        "checkpoint": None if checkpoint is None else checkpoint.begin,
        "voters": list(one.voters),
        "topics": len(one.state.topics),
        "shards": len(one.state.shards),
    }
