"""Can a running cluster be upgraded to the version of this program? What each node says of itself, judged.

Nothing is changed. Nodes are upgraded one after the other (`antiphon node restart`), so what is asked is whether each of
them can be spared now, and whether the two versions can read what the other one writes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

import antiphon
from antiphon.coordination.cluster_records import FORMAT
from antiphon.errors import AntiphonError
from antiphon.model.in_step import not_to_be_missed
from antiphon.model.metadata import ClusterMeta, NodeMeta
from antiphon.model.requests import StatusReply
from antiphon.node.formats import FORMATS
from antiphon.tools import rolling

ANSWER_S: Final = 3.0


class NodeChecked(msgspec.Struct, frozen=True):
    """One node. `formats`: by name what it writes and up to what it reads; None: it is of a version that does not tell.

    `order`: its place among the nodes that are to be upgraded, from 1; None: it has this version.
    """

    node: int
    status: str
    version: str | None
    metadata_reads: int
    formats: dict[str, dict[str, int]] | None
    order: int | None
    replicas: int
    leads: int
    stalls: int


class Checked(msgspec.Struct, frozen=True):
    """What an upgrade of a cluster comes to. `reasons` stand in its way, `notes` are worth knowing.

    `formats`: what the new version writes and reads. `versions`: those that nodes have now.
    """

    can: bool
    version: str
    versions: tuple[str, ...]
    formats: dict[str, dict[str, int]]
    nodes: tuple[NodeChecked, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def check_upgrade(db: antiphon.Client, version: str) -> Checked:
    """Ask every node. Raises UnreachableError where none answers."""
    cluster = db.metadata()
    answers: dict[int, StatusReply] = {}
    lacks: dict[int, str] = {}
    for node in cluster.nodes:
        try:
            answers[node.node_id] = db.node_status(node.node_id, timeout_s=ANSWER_S)
            lacks[node.node_id] = rolling.what_lacks(db, cluster, node.node_id)
        except AntiphonError as error:
            lacks[node.node_id] = error.message
    return judge_upgrade(cluster, answers, lacks, version)


def judge_upgrade(
    cluster: ClusterMeta, answers: Mapping[int, StatusReply], lacks: Mapping[int, str], version: str
) -> Checked:
    """The judgement. `lacks`: what each node is behind in, in words; empty: nothing."""
    up = {node.node_id for node in cluster.nodes if node.alive and node.node_id in answers}
    versions = tuple(sorted({answer.version for answer in answers.values()}, key=_numbers))
    old = [
        node.node_id
        for node in cluster.nodes
        if node.node_id not in answers or answers[node.node_id].version != version
    ]
    plan = rolling.plan(cluster, old)
    reasons = _missing(cluster, up)
    reasons += _mixed(answers, version)
    reasons += _formats(answers)
    reasons += [words for node_id, words in lacks.items() if words and node_id in up]
    reasons += _shards(cluster, [one.node for one in plan if one.node in up])
    reasons += _findings(answers)
    order = {one.node: place for place, one in enumerate(plan, 1)}
    planned = {one.node: one for one in rolling.plan(cluster, [node.node_id for node in cluster.nodes])}
    nodes = tuple(
        NodeChecked(
            node=node.node_id,
            status="up" if node.node_id in up else "down",
            version=None if node.node_id not in answers else answers[node.node_id].version,
            metadata_reads=node.reads,
            formats=_formats_of(answers.get(node.node_id)),
            order=order.get(node.node_id),
            replicas=planned[node.node_id].replicas,
            leads=planned[node.node_id].leads,
            stalls=planned[node.node_id].stalls,
        )
        for node in cluster.nodes
    )
    unique = tuple(dict.fromkeys(reasons))
    own = _by_name(FORMATS)
    return Checked(not unique, version, versions, own, nodes, unique, _notes(cluster, answers, plan, version))


def _missing(cluster: ClusterMeta, up: Collection[int]) -> list[str]:
    return [
        f"node {node.node_id} is down: start it again with the version that it had, and wait until it is in step"
        for node in cluster.nodes
        if node.node_id not in up
    ]


def _mixed(answers: Mapping[int, StatusReply], version: str) -> list[str]:
    """Two versions at a time work together: the old one and the new one. Never a later one than this program's."""
    found: dict[str, list[int]] = {}
    for node_id, answer in sorted(answers.items()):
        found.setdefault(answer.version, []).append(node_id)
    reasons = [
        f"{_nodes(nodes)} {'has' if len(nodes) == 1 else 'have'} version {one}, which is later than {version}: upgrade with "
        "the program of that version"
        for one, nodes in found.items()
        if _numbers(one) > _numbers(version)
    ]
    others = {one: nodes for one, nodes in found.items() if one != version}
    if len(others) > 1:
        named = "; ".join(f"{one}: {_nodes(nodes)}" for one, nodes in sorted(others.items()))
        reasons.append(
            f"the cluster is mixed ({named}): end the upgrade that is under way, with one of these versions, before the next"
        )
    return reasons


def _formats(answers: Mapping[int, StatusReply]) -> list[str]:
    """What a node writes that this version would not read."""
    own = {name: read for name, _, read in FORMATS}
    return [
        f"node {node_id} writes {name} in format {written}; this version reads "
        + (f"up to {own[name]}" if name in own else "no such thing")
        + ": use a later one"
        for node_id, answer in sorted(answers.items())
        for name, written, _ in answer.formats
        if written > own.get(name, 0)
    ]


def _shards(cluster: ClusterMeta, nodes: Sequence[int]) -> list[str]:
    """Shards that could not spare one of the nodes now: not whole, or changing."""
    lacks = {str(one): None for node_id in nodes for one in not_to_be_missed(cluster, node_id)}
    return list(lacks)


def _findings(answers: Mapping[int, StatusReply]) -> list[str]:
    return [
        f"node {node_id}, {'the node' if one.shard_id < 0 else f'shard {one.shard_id}'}: {one.kind}: {one.what}"
        for node_id, answer in sorted(answers.items())
        for one in answer.findings
        if not one.mended_ms
    ]


def _notes(
    cluster: ClusterMeta,
    answers: Mapping[int, StatusReply],
    plan: Sequence[rolling.Planned],
    version: str,
) -> tuple[str, ...]:
    notes = []
    if not plan:
        notes.append(f"every node has version {version}")
    elif len({answer.version for answer in answers.values()}) > 1:
        notes.append(f"the upgrade to {version} is under way: {_nodes([one.node for one in plan])} to go")
    stalls = sum(one.stalls for one in plan)
    if stalls:
        notes.append(f"{stalls} times a shard takes no writes while its node is away: too few other replicas")
    older = [node.node_id for node in cluster.nodes if _reads_less(node, answers.get(node.node_id))]
    if older:
        notes.append(
            f"{_nodes(older)} cannot read all that {version} may write: use nothing new before every node is upgraded, and "
            "there is no way back once it was used"
        )
    silent = [node_id for node_id, answer in sorted(answers.items()) if not answer.formats]
    if silent:
        notes.append(
            f"earlier versions do not tell their formats: of {_nodes(silent)} the changelog says them"
        )
    return tuple(notes)


def _reads_less(node: NodeMeta, answer: StatusReply | None) -> bool:
    if node.reads < FORMAT:
        return True
    told = {} if answer is None else {name: read for name, _, read in answer.formats}
    # A file that a node does not name has its first format there, or is passed over as one that nobody knows.
    return bool(told) and any(told.get(name, 1) < written for name, written, _ in FORMATS)


def _formats_of(answer: StatusReply | None) -> dict[str, dict[str, int]] | None:
    return _by_name(answer.formats) if answer is not None and answer.formats else None


def _by_name(formats: Sequence[tuple[str, int, int]]) -> dict[str, dict[str, int]]:
    return {name: {"writes": written, "reads": read} for name, written, read in formats}


def _nodes(nodes: Sequence[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))}"


def _numbers(version: str) -> tuple[int, ...]:
    """A version to compare by: its leading numbers."""
    found: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)
