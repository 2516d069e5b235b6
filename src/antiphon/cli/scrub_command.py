"""`antiphon scrub`: have nodes read what is on their disks now, and see how far they are and what they found."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import print_table, progress, usage
from antiphon.errors import UnavailableError
from antiphon.model.requests import StatusReply
from antiphon.tools.cluster_health import NODE_TIMEOUT_S, ago, as_plain, status_of

if TYPE_CHECKING:
    import antiphon

POLL_S = 0.5
WAIT_S = 600.0
HEADINGS = ("NODE", "READS SHARD", "DONE", "WAITING", "READ_MB", "ERRORS", "ALL READ", "RATE_MB_S")


@command("scrub", "antiphon scrub --node 1")
def scrub(
    node: Annotated[list[int] | None, typer.Option("--node", help="Only this node; may be repeated.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Start nothing: show how far the nodes are.")] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait", help="Return when all is read; with --no-wait as soon as it has begun."
        ),
    ] = True,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds to wait; the nodes go on by themselves.")
    ] = WAIT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Have nodes read all logs and stores on their disks and compare them with their checksums; show what they find.

    Nodes do that by themselves, too ([scrub] in node.toml). What is damaged is fetched again from the other replicas.
    Exits with 1 while anything is wrong that was found.
    """
    if show and node == []:
        usage("--node takes the id of a node")
    with common.connect() as db:
        known = [one.node_id for one in db.metadata().nodes]
        wanted = node or known
        strange = sorted(set(wanted) - set(known))
        if strange:
            usage(f"there is no node {strange[0]}; there are {', '.join(map(str, known))}", unknown="node")
        if not show:
            for node_id in wanted:
                db.start_scrub(node_id, timeout_s=NODE_TIMEOUT_S)
        if wait and not show:
            with progress("the nodes read what is on their disks"):
                _wait(db, wanted, time.monotonic() + timeout_s)
        found = {node_id: status_of(db, node_id) for node_id in wanted}
    _print_found(found, as_json=common.as_json)
    if any(not one.mended_ms for answer in found.values() if answer is not None for one in answer.findings):
        raise typer.Exit(1)


def _wait(db: "antiphon.Client", nodes: Sequence[int], deadline_s: float) -> None:
    """Until no node has anything more to read. Raises UnavailableError where that takes too long."""
    while True:
        answers = [status_of(db, node_id) for node_id in nodes]
        busy = [
            node_id
            for node_id, answer in zip(nodes, answers, strict=True)
            if answer is None
            or (answer.scrub is not None and (answer.scrub.shard_id >= 0 or answer.scrub.waiting))
        ]
        if not busy:
            return
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"nodes {', '.join(map(str, busy))} still read, and go on; `antiphon scrub --show` shows how far they are"
            )
        time.sleep(POLL_S)


def _print_found(found: dict[int, StatusReply | None], *, as_json: bool) -> None:
    told = [_plain(node_id, answer) for node_id, answer in found.items()]
    print_table(HEADINGS, [_row(node_id, answer) for node_id, answer in found.items()], told, as_json=as_json)
    for node_id, answer in found.items():
        for one in () if answer is None or as_json else answer.findings:
            word = "mended" if one.mended_ms else "WRONG"
            typer.echo(
                f"\n{word}: node {node_id}, {_of(one.shard_id)}, since {ago(one.since_ms)}: {one.what}"
            )
            if one.do and not one.mended_ms:
                typer.echo(f"  do: {one.do}")


def _of(shard_id: int) -> str:
    return "the node" if shard_id < 0 else f"shard {shard_id}"


def _plain(node_id: int, answer: StatusReply | None) -> dict[str, Any]:
    if answer is None or answer.scrub is None:
        return {"node": node_id, "scrub": None, "findings": []}
    return {
        "node": node_id,
        "scrub": as_plain(answer.scrub),
        "findings": [as_plain(one) for one in answer.findings],
    }


def _row(node_id: int, answer: StatusReply | None) -> tuple[object, ...]:
    if answer is None or answer.scrub is None:
        return (node_id, "no answer" if answer is None else "no scrub", *[None] * (len(HEADINGS) - 2))
    scrub = answer.scrub
    share = f"{100 * scrub.done_bytes // scrub.total_bytes} %" if scrub.total_bytes else None
    return (
        node_id,
        scrub.shard_id if scrub.shard_id >= 0 else None,
        share,
        scrub.waiting,
        round(scrub.read_bytes / 2**20, 1),
        scrub.errors,
        ago(scrub.completed_ms) if scrub.completed_ms else "never",
        round(scrub.bytes_per_s / 2**20, 1) if scrub.bytes_per_s else "on request",
    )
