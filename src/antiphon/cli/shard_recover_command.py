"""`antiphon shard recover`: a shard that lost most of its replicas goes on from one that is left."""

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.membership_commands import TimeoutOption, WaitOption
from antiphon.cli.moves import WAIT_S, listed, wait_for_moves
from antiphon.cli.output import print_json, print_table, progress
from antiphon.client.moves import shard_of
from antiphon.errors import AntiphonError, InvalidRequestError, UnavailableError, UnknownTopicError
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.placement import RecoverShard
from antiphon.model.requests import GetStatus, ReplicaStatus

if TYPE_CHECKING:
    import antiphon

CONFIRMED: Final = "--lose-what-only-lost-replicas-had"
ANSWER_S: Final = 5.0
SOUND: Final = ("ok", "disk_full", "ahead_of_leader")  # a shard can go on from a replica that says so
DOWN: Final = "down"
NOT_OPEN: Final = "not open"
HEADINGS: Final = ("NODE", "STATE", "PROMISED TERM", "LAST TERM", "LOG START", "LOG END", "COMMITTED")


class Replica(NamedTuple):
    """What is known of a member's replica; `status` None: its node does not answer, or has not opened it."""

    node: int
    state: str
    status: ReplicaStatus | None

    @property
    def is_sound(self) -> bool:
        """May the shard go on from it?"""
        return self.status is not None and self.state in SOUND

    @property
    def head(self) -> tuple[int, int]:
        """How much it has: by the term of its last entry, then by its length."""
        return (-1, -1) if self.status is None else (self.status.last_term, self.status.log_end)


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
        replicas = _look(db, meta)
        if not common.as_json:
            _print_replicas(found, meta, replicas)
        chosen = _choose(meta, replicas, from_node, f"{topic}/{shard}")
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
        raise UnknownTopicError(
            f"there is no topic or table {name}; `antiphon shard list` shows what there is"
        )
    return topic, shard_of(topic, shard)


def _look(db: "antiphon.Client", meta: ShardMeta) -> list[Replica]:
    """Ask every node that may have a replica what it has."""
    known = meta.recovery
    before = () if known is None or known.done else known.members
    alive = {node.node_id for node in db.metadata().nodes if node.alive}
    found = []
    for node in dict.fromkeys((*meta.everybody, *before)):
        status = None
        try:
            answer = (
                db.node_status(node, GetStatus((meta.shard_id,)), timeout_s=ANSWER_S)
                if node in alive
                else None
            )
        except AntiphonError:
            answer = None
        if answer is not None:
            status = next((one for one in answer.replicas if one.shard_id == meta.shard_id), None)
        state = DOWN if answer is None else NOT_OPEN if status is None else status.state
        found.append(Replica(node, state, status))
    return found


def _choose(meta: ShardMeta, replicas: list[Replica], wanted: int | None, name: str) -> Replica:
    """The replica to go on from: the longest one, or the one that was named, if nothing more is lost by that."""
    if meta.leader != ABSENT_NODE:
        there = [one for one in replicas if one.node in meta.ensemble and one.state != DOWN]
        if len(there) > len(meta.ensemble) // 2 or meta.fence == "live":
            raise InvalidRequestError(f"{name} is led by node {meta.leader}: nothing is to be recovered")
        replicas = [one for one in replicas if one.node == meta.leader]  # it has what it led the others to
    best = max((one for one in replicas if one.is_sound), key=lambda one: (one.head, -one.node), default=None)
    if wanted is not None:
        named = next((one for one in replicas if one.node == wanted), None)
        if named is None:
            raise InvalidRequestError(
                f"node {wanted} has no replica of {name}: nodes {[one.node for one in replicas]} have"
            )
        if best is not None and named.head < best.head:
            raise InvalidRequestError(
                f"node {best.node} has more of {name} (up to offset {best.head[1]}, last term {best.head[0]}) than node "
                f"{wanted} ({_has(named)}): go on from node {best.node}, so that less is lost"
            )
        return named
    if best is None:
        raise UnavailableError(
            f"no replica of {name} is left that can be read whole: start the nodes that are down, or restore it from a "
            "backup (`antiphon backup restore-topic`)"
        )
    return best


def _has(replica: Replica) -> str:
    if replica.status is None:
        return replica.state
    return f"up to offset {replica.head[1]}, last term {replica.head[0]}"


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
        names = [heading.lower().replace(" ", "_") for heading in HEADINGS]
        rows = [dict(zip(names, _row(one), strict=True)) for one in replicas]
        print_json({"recovered": False, "best": chosen.node, "replicas": rows})
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
