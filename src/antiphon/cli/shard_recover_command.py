"""`antiphon shard recover`: a shard that lost most of its replicas goes on from one that is left."""

from typing import Annotated, Any, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.membership_commands import TimeoutOption, WaitOption
from antiphon.cli.moves import WAIT_S, listed, wait_for_moves
from antiphon.cli.output import as_objects, print_json, print_table, progress
from antiphon.client.moves import shard_of
from antiphon.errors import UnknownTopicError
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.placement import RecoverShard
from antiphon.tools.shard_recovery import DOWN, Replica, choose, look

CONFIRMED: Final = "--lose-what-only-lost-replicas-had"
HEADINGS: Final = ("NODE", "STATE", "PROMISED TERM", "LAST TERM", "LOG START", "LOG END", "COMMITTED")


@command("shard recover", "antiphon shard recover flights 0")
def shard_recover(
    topic: Annotated[str, typer.Argument(help="Topic or table.")],
    shard: Annotated[int, typer.Argument(help="Shard number, from 0.")],
    from_node: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="NODE", help="Go on from this node's replica, not from the longest one."
        ),
    ] = None,
    confirmed: Annotated[
        bool,
        typer.Option(CONFIRMED, help="Do it. Without this option the command only says what it would do."),
    ] = False,
    wait: WaitOption = True,
    timeout_s: TimeoutOption = WAIT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Let a shard go on from one replica, when the disks of most others are lost for good. For no other case.

    Records that only the lost replicas had are gone, also acknowledged ones. Refused while enough members are alive to
    elect a leader. Replicas that are not named begin anew: what they have is not used, now or when they come back.
    """
    with common.connect() as db:
        found, meta = _find(db.metadata(), topic, shard)
        replicas = look(db, meta)
        if not common.as_json:
            _print_replicas(found, meta, replicas)
        chosen = choose(meta, replicas, from_node, f"{topic}/{shard}")
        if not confirmed:
            _print_plan(found, meta, replicas, chosen, as_json=common.as_json)
            return
        seen = max((one.status.term for one in replicas if one.status is not None), default=0)
        end = 0 if chosen.status is None else chosen.status.log_end
        number = 1 if meta.recovery is None else meta.recovery.number + 1
        with progress(f"recovering {topic}/{shard} from node {chosen.node}"):
            request = RecoverShard(meta.shard_id, chosen.node, max(seen, meta.term), end, number)
            db.run(db.aio.administer(request))
        if not common.as_json:
            typer.echo(
                f"{topic}/{shard} goes on from node {chosen.node}; what others had from offset {end} on is lost"
            )
        if wait:
            wait_for_moves(db, lambda name, one: (name, one.index) == (topic, shard), timeout_s)
        found, meta = _find(db.metadata(), topic, shard)
    _print_recovered(found, meta, as_json=common.as_json)


def _find(cluster: ClusterMeta, name: str, shard: int) -> tuple[TopicMeta, ShardMeta]:
    topic = next((one for one in cluster.topics if one.name == name), None)
    if topic is None:
        raise UnknownTopicError(f"there is no topic or table {name}", name=name)
    return topic, shard_of(topic, shard)


def _print_replicas(topic: TopicMeta, meta: ShardMeta, replicas: list[Replica]) -> None:
    """What is known, and what is not."""
    typer.echo(
        f"{topic.name}/{meta.index} is {meta.status.value}, in term {meta.term}; members: {listed(meta.everybody)}"
    )
    print_table(HEADINGS, [_row(one) for one in replicas], as_json=False)
    down = tuple(one.node for one in replicas if one.state == DOWN)
    if down:
        typer.echo(
            f"If the disk of one of nodes {listed(down)} is whole, start that node first: with a majority nothing is lost"
        )


def _row(one: Replica) -> list[object]:
    status = one.status
    if status is None:
        return [one.node, one.state, None, None, None, None, None]
    last = status.last_term if status.last_term >= 0 else None
    return [one.node, one.state, status.term, last, status.log_start, status.log_end, status.high_watermark]


def _print_plan(
    topic: TopicMeta, meta: ShardMeta, replicas: list[Replica], chosen: Replica, *, as_json: bool
) -> None:
    if as_json:
        told = as_objects(HEADINGS, map(_row, replicas))
        print_json({"recovered": False, "best": chosen.node, "replicas": told})
        return
    end = chosen.head[1]
    typer.echo(
        f"What others committed behind offset {end} cannot be known here, and would be lost.\n"
        f"Nothing was changed. To do it: antiphon shard recover {topic.name} {meta.index} --from {chosen.node} {CONFIRMED}"
    )


def _print_recovered(topic: TopicMeta, meta: ShardMeta, *, as_json: bool) -> None:
    known = meta.recovery
    if as_json:
        shown: dict[str, Any] = {"recovered": known is not None and known.done}
        if known is not None:
            shown |= {"node": known.node, "term": known.term, "at": known.at, "number": known.number}
        print_json(
            {**shown, "ensemble": list(meta.ensemble), "leader": meta.leader if meta.leader >= 0 else None}
        )
        return
    typer.echo(f"{topic.name}/{meta.index} is on nodes {listed(meta.ensemble)}, led by node {meta.leader}")
    if len(meta.ensemble) < topic.replicas and not meta.goal:
        typer.echo(
            f"It is to have {topic.replicas} replicas. When more nodes are up: `antiphon {topic.kind.value} alter "
            f"{topic.name} --replicas {topic.replicas}`"
        )
