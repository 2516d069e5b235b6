"""`antiphon node restart|hand-over|await`: restart nodes one after the other, while everybody works."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.moves import anything, wait_for_moves
from antiphon.cli.output import print_json, print_table, say, usage
from antiphon.client.local_folder import local_servers
from antiphon.errors import AntiphonError
from antiphon.tools import rolling
from antiphon.tools.cluster_health import as_plain
from antiphon.tools.restarters import ByHand, Command, LocalProcesses

if TYPE_CHECKING:
    import antiphon

TIMEOUT_S = 300.0
HEADINGS = ("ORDER", "NODE", "STATUS", "REPLICAS", "LEADS", "HANDS OVER", "STALLS", "COORDINATES")

SecondsOption = Annotated[
    float, typer.Option("--timeout", min=1.0, help="Seconds that one node may take, from first to last.")
]


def _print_progress(words: str) -> None:
    typer.echo(words, err=True)


@command("node restart", "antiphon node restart --all")
def node_restart(
    nodes: Annotated[list[int] | None, typer.Argument(help="Node ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All nodes of the cluster.")] = False,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            help="What restarts a node, run here once for each, without a shell; {node}, {host}, {native}, {kafka} and "
            "{http} stand for its id and addresses. Without it: the processes of the cluster in --dir; where there is none, "
            "you are told when to restart which node.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    even_out: Annotated[
        bool, typer.Option("--rebalance/--no-rebalance", help="Even out leaderships at the end.")
    ] = True,
    timeout_s: SecondsOption = TIMEOUT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Restart nodes one after the other. Each hands over what it leads first; the next one waits until it is in step.

    Nothing is restarted while a shard could not spare the node. Ends at the first node that does not come back.
    """
    if bool(nodes) == everything:
        usage("name the nodes to restart, or --all")
    restarter = (
        Command(command) if command is not None else _restarter(common.servers, common.directory.absolute())
    )
    with common.connect() as db:
        cluster = db.metadata()
        wanted = nodes or [node.node_id for node in cluster.nodes]
        planned = rolling.plan(cluster, wanted)
        if not common.as_json:
            _show(planned)
        if dry_run:
            if common.as_json:
                print_json({"plan": [as_plain(one) for one in planned]})
            return
        _restart_all(db, planned, restarter, timeout_s, even_out=even_out, as_json=common.as_json)


def _restarter(servers: str | None, directory: Path) -> rolling.Restarter:
    _, cluster = local_servers(servers or "", directory)
    return ByHand(_print_progress) if cluster is None else LocalProcesses(cluster, _print_progress)


def _show(planned: list[rolling.Planned]) -> None:
    rows = [
        (
            order,
            one.node,
            "up" if one.alive else "down",
            one.replicas,
            one.leads,
            one.hands_over,
            one.stalls,
            "yes" if one.coordinates else None,
        )
        for order, one in enumerate(planned, 1)
    ]
    print_table(HEADINGS, rows, as_json=False)
    stalls = sum(one.stalls for one in planned)
    if stalls:
        _print_progress(
            f"{stalls} times a shard takes no writes while its node is away: too few other replicas"
        )


def _restart_all(
    db: "antiphon.Client",
    planned: list[rolling.Planned],
    restarter: rolling.Restarter,
    timeout_s: float,
    *,
    even_out: bool,
    as_json: bool,
) -> None:
    started = time.monotonic()
    done: list[rolling.Restarted] = []
    failed: dict[str, Any] | None = None
    evened = 0
    for order, one in enumerate(planned, 1):
        _print_progress(f"node {one.node} ({order} of {len(planned)})")
        try:
            done.append(rolling.restart_node(db, one.node, restarter, timeout_s, _print_progress))
        except AntiphonError as error:
            failed = {"node": one.node, "why": " ".join(error.message.split())}
            break
        except KeyboardInterrupt:
            failed = {"node": one.node, "why": "interrupted; this node may be down"}
            break
    if failed is None and even_out:
        db.rebalance(leaders_only=True)
        evened = wait_for_moves(db, anything, timeout_s)
    left = [one.node for one in planned[len(done) :]]
    took_s = time.monotonic() - started
    told = {
        "plan": [as_plain(one) for one in planned],
        "restarted": [as_plain(one) for one in done],
        "failed": failed,
        "left": left,
        "leaderships_evened": evened,
        "seconds": round(took_s, 3),
    }
    say(_result(done, evened, took_s), told, as_json=as_json)
    if failed is not None:
        _print_progress(
            f"antiphon: {failed['why']}. `antiphon status` shows how the cluster is; when that is mended: "
            f"`antiphon node restart {' '.join(map(str, left))}`"
        )
        raise typer.Exit(1)


def _result(done: list[rolling.Restarted], evened: int, took_s: float) -> str:
    names = ", ".join(str(one.node) for one in done) or "none"
    handed = sum(one.handed_over for one in done)
    return (
        f"Restarted {len(done)} nodes ({names}) in {took_s:.1f} s: {handed} leaderships handed over, {evened} moved at the "
        "end"
    )


@command("node hand-over", "antiphon node hand-over 2")
def node_hand_over(
    node: Annotated[int, typer.Argument(help="Node id.")],
    timeout_s: SecondsOption = TIMEOUT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Have other nodes lead what a node leads, before it is stopped. It gets them back by `antiphon rebalance`."""
    began = time.monotonic()
    with common.connect() as db:
        rolling.plan(db.metadata(), [node])
        moved = rolling.hand_over(db, node, timeout_s)
        left = sum(shard.leader == node for topic in db.metadata().topics for shard in topic.shards)
    took_s = round(time.monotonic() - began, 3)
    kept = f"; {left} stay, which no other replica may lead" if left else ""
    shown = {"node": node, "handed_over": moved, "still_leads": left, "seconds": took_s}
    say(f"Node {node} handed over {moved} leaderships{kept}", shown, as_json=common.as_json)


@command("node await", "antiphon node await 2")
def node_await(
    node: Annotated[int, typer.Argument(help="Node id.")],
    timeout_s: SecondsOption = TIMEOUT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Wait until a node that was started takes part in all of its shards: only then stop the next one."""
    began = time.monotonic()
    with common.connect() as db:
        rolling.plan(db.metadata(), [node])
        rolling.wait_until_back(db, node, "", timeout_s, _print_progress)
    took_s = round(time.monotonic() - began, 3)
    say(f"Node {node} is in step", {"node": node, "in_step": True, "seconds": took_s}, as_json=common.as_json)
