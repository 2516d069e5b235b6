"""`antiphon node voters`: who votes in `__cluster`, where all metadata is, and how that changes."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.membership_commands import TimeoutOption, WaitOption
from antiphon.cli.moves import WAIT_S, listed, wait_until_done
from antiphon.cli.output import print_json, print_table, usage
from antiphon.client.moves import is_on_its_way
from antiphon.errors import UnavailableError
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, ShardMeta
from antiphon.model.requests import AlterVoters
from antiphon.tools.cluster_health import status_of

if TYPE_CHECKING:
    import antiphon

ANSWER_S: Final = 5.0
NOBODY: Final = -1


@command("node voters", "antiphon node voters --replace 1 3")
def node_voters(
    add: Annotated[int | None, typer.Option("--add", metavar="NODE", help="Have this node vote too.")] = None,
    remove: Annotated[
        int | None, typer.Option("--remove", metavar="NODE", help="Have this node vote no more.")
    ] = None,
    replace: Annotated[
        tuple[int, int] | None,
        typer.Option(
            "--replace", metavar="OLD NEW", help="Have NEW vote in the place of OLD, which may be gone."
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take back a change whose new voter does not count yet.")
    ] = False,
    wait: WaitOption = True,
    timeout_s: TimeoutOption = WAIT_S,
    common: CommonOptions = COMMON,
) -> None:
    """List the voters of the cluster's own log, or change them, one at a time, while everybody works.

    A majority of them has to be up: 3 can lose one, 5 two. A new voter gets the log
    first, and counts when it has everything.
    """
    asked = [add is not None, remove is not None, replace is not None, cancel]
    if sum(asked) > 1:
        usage("give one of --add, --remove, --replace and --cancel: one change is made at a time")
    with common.connect() as db:
        if any(asked):
            old, new = replace or (NOBODY if remove is None else remove, NOBODY if add is None else add)
            db.run(db.aio.administer(AlterVoters(new, old, cancel)))
            if wait:
                _wait(db, timeout_s)
        cluster = db.metadata()
        found = _rows(db, cluster)
    _show(_voters(cluster), found, as_json=common.as_json)


def _voters(cluster: ClusterMeta) -> ShardMeta:
    if cluster.voters is None:
        raise UnavailableError("the node that answered does not say who votes: its version is an earlier one")
    return cluster.voters


def _wait(db: "antiphon.Client", timeout_s: float) -> None:
    """Tell on stderr how far the change is until it is done. Raises TimedOutError."""

    def look() -> str:
        cluster = db.metadata()
        voters = _voters(cluster)
        return _waits_for(cluster, voters) if is_on_its_way(voters) else ""

    wait_until_done(
        look,
        timeout_s,
        "it goes on by itself: `antiphon node voters` shows how far it is, `--cancel` takes it back",
    )


def _waits_for(cluster: ClusterMeta, voters: ShardMeta) -> str:
    change = f"voters {listed(voters.ensemble)} become {listed(voters.aim)}"
    new = [node for node in voters.aim if node not in voters.ensemble]
    down = [node.node_id for node in cluster.nodes if node.node_id in new and not node.alive]
    if down:
        return f"{change}: waits for node {down[0]}, which is down"
    if voters.outgoing:
        return f"{change}: a majority of both is brought up to date"
    return f"{change}: node {new[0]} is catching up" if new else f"{change}: the leader has to confirm it"


def _rows(db: "antiphon.Client", cluster: ClusterMeta) -> list[dict[str, Any]]:
    """Each voter with how far it is, as the node that coordinates knows it."""
    voters = _voters(cluster)
    ends, end = _ends(db, cluster)
    alive = {node.node_id for node in cluster.nodes if node.alive}
    return [
        {
            "node": node,
            "role": _role(node, voters, cluster.controller),
            "up": node in alive,
            "log_end": ends.get(node),
            "behind": end - ends[node] if node in ends else None,
        }
        for node in voters.everybody
    ]


def _role(node: int, voters: ShardMeta, controller: int) -> str:
    if node in voters.learners:
        return "catches up"
    if node in voters.goal or not voters.goal:
        return "leads" if node == controller else "votes"
    return "leaves"


def _ends(db: "antiphon.Client", cluster: ClusterMeta) -> tuple[dict[int, int], int]:
    answer = status_of(db, cluster.controller, timeout_s=ANSWER_S)
    there = () if answer is None else answer.replicas
    own = next((one for one in there if one.shard_id == CLUSTER_SHARD_ID), None)
    if own is None:
        return {}, 0
    return {**dict(own.followers), cluster.controller: own.log_end}, own.log_end


def _show(voters: ShardMeta, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    count = len(voters.aim)
    survives = (count - 1) // 2
    if as_json:
        goal = list(voters.goal) or None
        print_json({"voters": list(voters.ensemble), "goal": goal, "can_lose": survives, "nodes": rows})
        return
    shown = [
        (row["node"], row["role"], "up" if row["up"] else "down", row["log_end"], row["behind"])
        for row in rows
    ]
    print_table(["NODE", "ROLE", "STATUS", "LOG END", "BEHIND"], shown, as_json=False)
    even = f"; {count + 1} could lose {count // 2}" if count % 2 == 0 else ""
    typer.echo(f"{count} voters can lose {survives}{even}" if count > 1 else "1 voter can lose none")
