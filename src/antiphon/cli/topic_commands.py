"""`antiphon topic ...`, `antiphon table ...`, `antiphon shard ...`: what there is and who leads it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, Function, command, group
from antiphon.cli.moves import WAIT_S, wait_for_moves
from antiphon.cli.output import as_objects, note, pairs_of, print_json, print_table, progress, say, usage
from antiphon.cli.topic_options import (
    CommitOption,
    ElectionOption,
    ProfileOption,
    SplitBrainOption,
    WritersOption,
    caveats,
    describe_source,
    in_force,
    settings_in_force,
    values_of_node,
    with_options,
)
from antiphon.errors import AntiphonError, UnknownTopicError, WrongKindError
from antiphon.model.internal import is_internal
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, Kind, ShardMeta, TopicMeta
from antiphon.model.requests import ReplicaStatus
from antiphon.tools.cluster_health import status_of

if TYPE_CHECKING:
    import antiphon

ConfigOption = Annotated[
    list[str] | None, typer.Option("--config", help="k=v, by Kafka's names; may be repeated.")
]
SETTINGS_S = 5.0  # a node may fall silent while it is asked
SHARD_HEADINGS = (
    "TOPIC",
    "SHARD",
    "STATUS",
    "LEADER",
    "TERM",
    "ENSEMBLE",
    "LIVE",
    "HW",
    "LEO",
    "FOLLOWERS",
    "SIZE",
)
JSON_HEADINGS = (*SHARD_HEADINGS, "LEARNERS", "OUTGOING", "VCLOCK", "RECOVERED")


group("topic", "Create, list, describe, alter and delete topics.", "Example: antiphon topic list")
group("table", "Create, list, describe, alter and delete tables.", "Example: antiphon table list")
group("shard", "Shards: who leads, who follows, how far.", "Example: antiphon shard list --json")

_CREATE_EXAMPLES: Final = {
    Kind.TOPIC: "flights --shards 4 --replicas 3 · antiphon topic create metrics --profile fluvio --config min.live=2",
    Kind.TABLE: "aircraft --shards 4 --replicas 3 · antiphon table create sites --writers multi --replicas 3",
}


def parse_config(pairs: list[str] | None) -> dict[str, str]:
    """["a=b", ...] as a dictionary; exits with 2 on anything else."""
    return dict(pairs_of(pairs, "--config"))


def _for_topics_and_tables(declare: Callable[[Kind], Function]) -> Callable[[Kind], Function]:
    for kind in (Kind.TOPIC, Kind.TABLE):
        declare(kind)
    return declare


@_for_topics_and_tables
def _create(kind: Kind) -> Function:
    @command(f"{kind.value} create", f"antiphon {kind.value} create {_CREATE_EXAMPLES[kind]}")
    def create(
        name: Annotated[str, typer.Argument(help="Its name: letters, digits, dot, dash, underscore.")],
        shards: Annotated[int, typer.Option(help="How many shards.")] = 1,
        replicas: Annotated[int, typer.Option(help="Copies of each shard; 0: one a node, at most 3.")] = 0,
        profile: ProfileOption = "",
        commit: CommitOption = None,
        election: ElectionOption = None,
        writers: WritersOption = None,
        accept_split_brain: SplitBrainOption = False,
        config: ConfigOption = None,
        common: CommonOptions = COMMON,
    ) -> None:
        settings = with_options(
            parse_config(config),
            commit=commit,
            election=election,
            writers=writers,
            accept_split_brain=accept_split_brain,
        )
        with common.connect() as db, progress(f"creating {name}"):
            make = db.create_topic if kind is Kind.TOPIC else db.create_table
            make(name, shards=shards, replicas=replicas, profile=profile, config=settings)
            topic = _find(db.metadata(), name, kind)
        text = f"Created {kind.value} {name}: {len(topic.shards)} shards x {topic.replicas} replicas, {topic.profile}"
        say(text, _as_json(topic), as_json=common.as_json)
        _warn(topic)

    create.__doc__ = f"Create a {kind.value}."
    return create


@_for_topics_and_tables
def _list(kind: Kind) -> Function:
    @command(f"{kind.value} list", f"antiphon {kind.value} list --json")
    def list_(
        internal: Annotated[
            bool, typer.Option("--internal", help="Also those that Antiphon keeps for itself.")
        ] = False,
        common: CommonOptions = COMMON,
    ) -> None:
        with common.connect() as db:
            cluster = db.metadata()
        rows = [
            (
                topic.name,
                len(topic.shards),
                topic.replicas,
                topic.profile,
                sum(shard.leader != ABSENT_NODE for shard in topic.shards),
                dict(topic.config),
            )
            for topic in sorted(cluster.topics, key=lambda topic: topic.name)
            if topic.kind is kind and (internal or not topic.internal)
        ]
        print_table(("NAME", "SHARDS", "REPLICAS", "PROFILE", "LED", "CONFIG"), rows, as_json=common.as_json)

    list_.__doc__ = f"List the {kind.value}s."
    return list_


def _values_of_node(db: "antiphon.Client", topic: TopicMeta) -> dict[str, tuple[str, str]]:
    """What a node that is alive has for topics that set nothing; nothing where none tells."""
    alive = [node.node_id for node in db.metadata().nodes if node.alive]
    if not alive:
        return {}
    try:
        told = db.run(db.aio.coordinators.node_settings(alive[0], timeout_s=SETTINGS_S))
    except AntiphonError:
        return {}
    return values_of_node(told, of_table=topic.kind is Kind.TABLE and not is_internal(topic))


@_for_topics_and_tables
def _describe(kind: Kind) -> Function:
    @command(f"{kind.value} describe", f"antiphon {kind.value} describe flights")
    def describe(
        name: Annotated[str, typer.Argument(help="Its name.")],
        common: CommonOptions = COMMON,
    ) -> None:
        with common.connect() as db:
            cluster = db.metadata()
            topic = _find(cluster, name, kind)
            rows = _shard_rows(db, [topic])
            in_effect = settings_in_force(topic, _values_of_node(db, topic))
        if common.as_json:
            options = {option: value for option, value, _ in in_force(topic)}
            shards = as_objects(JSON_HEADINGS, rows)
            settings = {setting: {"value": value, "source": source} for setting, value, source in in_effect}
            print_json(_as_json(topic) | {"options": options, "settings": settings, "shards": shards})
            return
        typer.echo(
            f"{kind.value} {name}  id {topic.topic_id.hex()}  profile {topic.profile}  replicas {topic.replicas}"
        )
        for option, value, whence in in_force(topic):
            typer.echo(f"  {option} = {value}  ({whence})")
        for setting, value, source in in_effect:
            typer.echo(f"  {setting} = {value}  ({describe_source(setting, value, source)})")
        print_table(SHARD_HEADINGS, _for_people(rows), as_json=False)

    describe.__doc__ = f"Show a {kind.value} with its settings and shards."
    return describe


@_for_topics_and_tables
def _alter(kind: Kind) -> Function:
    @command(
        f"{kind.value} alter",
        f"antiphon {kind.value} alter flights --commit quorum --config retention.ms=86400000",
    )
    def alter(
        name: Annotated[str, typer.Argument(help="Its name.")],
        commit: CommitOption = None,
        accept_split_brain: SplitBrainOption = False,
        config: ConfigOption = None,
        reset: Annotated[
            list[str] | None, typer.Option("--reset", help="A setting to put back to its default.")
        ] = None,
        shards: Annotated[
            int | None, typer.Option(help="New number of shards of a topic (only more).")
        ] = None,
        replicas: Annotated[
            int | None, typer.Option(help="New number of copies of each shard; they move while it is used.")
        ] = None,
        common: CommonOptions = COMMON,
    ) -> None:
        chosen = with_options(parse_config(config), commit=commit, accept_split_brain=accept_split_brain)
        settings: dict[str, str | None] = {**chosen, **dict.fromkeys(reset or [])}
        if not settings and shards is None and replicas is None:
            usage("nothing to change: give --commit, --config, --reset, --shards or --replicas")
        with common.connect() as db, progress(f"altering {name}"):
            _find(db.metadata(), name, kind)
            db.alter_topic(name, config=settings, shards=shards, replicas=replicas)
            topic = _find(db.metadata(), name, kind)
            if replicas is not None:
                wait_for_moves(db, lambda topic_name, _: topic_name == name, WAIT_S)
                topic = _find(db.metadata(), name, kind)
        say(f"Altered {kind.value} {name}", _as_json(topic), as_json=common.as_json)
        if settings:
            _warn(topic)

    alter.__doc__ = f"Change the settings of a {kind.value}, or its replicas" + (
        ", or add shards." if kind is Kind.TOPIC else "."
    )
    return alter


@_for_topics_and_tables
def _delete(kind: Kind) -> Function:
    @command(f"{kind.value} delete", f"antiphon {kind.value} delete flights")
    def delete(
        name: Annotated[str, typer.Argument(help="Its name.")],
        common: CommonOptions = COMMON,
    ) -> None:
        with common.connect() as db, progress(f"deleting {name}"):
            _find(db.metadata(), name, kind)
            db.delete_topic(name)
        shown = {"name": name, "kind": kind.value, "deleted": True}
        say(f"Deleted {kind.value} {name}", shown, as_json=common.as_json)

    delete.__doc__ = f"Delete a {kind.value} and its data."
    return delete


def _find(cluster: ClusterMeta, name: str, kind: Kind) -> TopicMeta:
    for topic in cluster.topics:
        if topic.name == name:
            if topic.kind is not kind:
                raise WrongKindError(f"{name} is a {topic.kind.value}, not a {kind.value}", name=name)
            return topic
    raise UnknownTopicError(f"there is no {kind.value} {name}", name=name)


def _warn(topic: TopicMeta) -> None:
    for line in caveats(topic):
        note(line)


def _as_json(topic: TopicMeta) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.topic_id.hex(),
        "kind": topic.kind.value,
        "profile": topic.profile,
        "replicas": topic.replicas,
        "config": topic.config,
        "shards": len(topic.shards),
    }


@command("shard list", "antiphon shard list --topic flights")
def shard_list(
    topic: Annotated[str | None, typer.Option(help="Only this topic's or table's.")] = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also those that Antiphon keeps for itself.")
    ] = False,
    common: CommonOptions = COMMON,
) -> None:
    """Every shard: leader, term, ensemble, live replicas, high watermark, log end and how far each follower is.

    ENSEMBLE are the voters; +N is on its way in and does not count yet, -N is on its way out. LIVE are those that keep up;
    with commit=live it is the recorded live replica set, by which commits go.
    """
    with common.connect() as db:
        cluster = db.metadata()
        chosen = [found for found in cluster.topics if topic is None or found.name == topic]
        if topic is not None and not chosen:
            raise UnknownTopicError(f"there is no topic or table {topic}", name=topic)
        shown = [found for found in chosen if internal or topic is not None or not found.internal]
        rows = _shard_rows(db, sorted(shown, key=lambda found: found.name))
    told = as_objects(JSON_HEADINGS, rows)
    print_table(SHARD_HEADINGS, _for_people(rows), told, as_json=common.as_json)


@command("shard elect", "antiphon shard elect flights 0 --node 2")
def shard_elect(
    topic: Annotated[str, typer.Argument(help="Topic or table.")],
    shard: Annotated[int, typer.Argument(help="Shard number, from 0.")],
    node: Annotated[int, typer.Option(help="The node that should lead; -1: the best log.")] = -1,
    common: CommonOptions = COMMON,
) -> None:
    """Elect the leader of a shard anew. Its present leader stops serving first."""
    with common.connect() as db:
        with progress(f"electing {topic}/{shard}"):
            db.elect_leader(topic, shard, node=node)
        led = {
            one.index: one for found in db.metadata().topics if found.name == topic for one in found.shards
        }
    found = led.get(shard)
    shown = {"topic": topic, "shard": shard, "leader": found and found.leader, "term": found and found.term}
    say(f"{topic}/{shard} has elected", shown, as_json=common.as_json)


def _shard_rows(db: "antiphon.Client", topics: list[TopicMeta]) -> list[list[object]]:
    """Rows of JSON_HEADINGS; a leader that does not answer leaves its columns empty."""
    replicas: dict[tuple[int, int], ReplicaStatus] = {}
    leaders = {shard.leader for topic in topics for shard in topic.shards if shard.leader != ABSENT_NODE}
    for node_id in sorted(leaders):
        if (answer := status_of(db, node_id)) is not None:
            replicas.update({(node_id, replica.shard_id): replica for replica in answer.replicas})
    return [
        _shard_row(topic, shard, replicas.get((shard.leader, shard.shard_id)))
        for topic in topics
        for shard in topic.shards
    ]


def _for_people(rows: list[list[object]]) -> list[list[object]]:
    """Rows of SHARD_HEADINGS, with followers as NODE(leo, lag) and changes of members as +NODE and -NODE.

    Where every replica writes, the vector clock of the one that was asked follows.
    """
    at, members = SHARD_HEADINGS.index("FOLLOWERS"), SHARD_HEADINGS.index("ENSEMBLE")
    shown = []
    for *row, learners, outgoing, vclock, _recovered in rows:
        row[members] = _with_changes(row[members], learners, outgoing)
        followers = row[at]
        text = "-"
        if isinstance(followers, list):
            text = " ".join(f"{each['node']}({each['leo']}, {each['lag']})" for each in followers) or "-"
        if isinstance(vclock, list):
            text += f" vclock {vclock[1:]}"
        shown.append([*row[:at], text, *row[at + 1 :]])
    return shown


def _with_changes(ensemble: object, learners: object, outgoing: object) -> object:
    if not (isinstance(ensemble, list) and isinstance(learners, list) and isinstance(outgoing, list)):
        return ensemble
    coming = [f"+{node}" for node in (*learners, *(n for n in ensemble if outgoing and n not in outgoing))]
    going = [f"-{node}" for node in outgoing if node not in ensemble]
    return [*(n for n in ensemble if not outgoing or n in outgoing), *coming, *going]


def _shard_row(topic: TopicMeta, shard: ShardMeta, leader: ReplicaStatus | None) -> list[object]:
    followers = None
    if leader is not None:
        followers = [
            {"node": node, "leo": end, "lag": max(0, leader.log_end - end)} for node, end in leader.followers
        ]
    return [
        topic.name,
        shard.index,
        shard.status.value,
        shard.leader if shard.leader != ABSENT_NODE else None,
        shard.term,
        list(shard.ensemble),
        list(shard.live if shard.live or shard.fence != "majority" else shard.ensemble),
        None if leader is None else leader.high_watermark,
        None if leader is None else leader.log_end,
        followers,
        None if leader is None else leader.size_bytes,
        list(shard.learners),
        list(shard.outgoing),
        list(leader.vclock) if leader is not None and leader.vclock else None,
        _recovered(shard),
    ]


def _recovered(shard: ShardMeta) -> dict[str, int] | None:
    """That most of its replicas were lost once: from which node it went on, in which term, and where that log ended."""
    known = shard.recovery
    return None if known is None else {"node": known.node, "term": known.term, "at": known.at}
