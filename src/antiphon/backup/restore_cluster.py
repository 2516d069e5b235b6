"""Restores a whole backup into fresh directories, one for each node of a new cluster.

Offsets, terms of batches, producers, versions, groups, users and settings are what they were: logs and states are the
same bytes. New are the id of the cluster, the placement of replicas, and terms: each shard's is above all that the old
cluster had at the cut. Nodes of the old cluster are refused by the id. The new ones elect leaders when they start.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from antiphon import system
from antiphon.backup.manifest import Backup, ShardBackup
from antiphon.backup.metadata import topics_of
from antiphon.backup.place import Place
from antiphon.backup.shard_files import ShardFiles
from antiphon.backup.verify import metadata_of, verify_backup
from antiphon.coordination.cluster_records import (
    ClusterRecord,
    ShardRecord,
    access_record,
    cluster_record,
    counter_record,
    headers_of,
    node_record,
    settings_record,
    shard_record,
    subscription_record,
    topic_record,
)
from antiphon.coordination.placement import NodeLoad, place
from antiphon.coordination.state import ClusterState
from antiphon.coordination.topic_rules import check_settings
from antiphon.errors import BackupError, InvalidRequestError
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import Disk, RealDisk, discard_tree
from antiphon.model.access import User
from antiphon.model.metadata import ABSENT_NODE, CLUSTER_SHARD_ID, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.node_settings import ALL_NODES
from antiphon.records.builder import build_batch
from antiphon.records.members import Members

VOTERS_MAX: Final = 3  # of `__cluster`, and an odd number, as in a cluster that is founded
TERMS_ABOVE: Final = 1
BATCH_RECORDS: Final = 1_000
NODES_MAX: Final = 64

Tell = Callable[[str], None]


class Restored(NamedTuple):
    """A cluster that can be started: its id, its nodes' directories, and what is in them."""

    cluster_id: str
    directories: list[Path]
    topics: int
    shards: int
    size_bytes: int


def restore_cluster(
    source: Place,
    backup: Backup,
    directory: Path,
    nodes: int,
    *,
    user: User | None = None,
    tell: Tell | None = None,
    disk: Disk | None = None,
) -> Restored:
    """Make the directories `node-0`, `node-1`, ... in `directory`. `user` is added, or takes the place of one.

    `disk`: where the directories are; by default the file system. All is durable when this returns.

    Raises BackupError before anything is written, where the backup is not whole or does not fit, or something is in the
    directory.
    """
    say = tell or (lambda _text: None)
    disk = disk or RealDisk()
    say("reading the backup")
    topics = _checked(source, backup, disk, directory, nodes)
    state = metadata_of(source, backup).state
    if user is not None:
        state.access.users[user.name] = user
    cluster_id = system.new_uuid().hex
    saved = {shard.shard_id: shard for shard in backup.shards}
    placed = _place_all(topics, nodes, saved)
    folders = [directory / f"node-{number}" for number in range(nodes)]
    files, opened = ShardFiles(source, disk), list[NodeDirectory]()
    try:
        for number, folder in enumerate(folders):
            opened.append(NodeDirectory.open(str(folder), cluster_id, number, disk=disk, bootstrap=True))
        for number, shard in enumerate(placed.values(), 1):
            say(f"shard {number} of {len(placed)}")
            _restore_shard(files, opened, folders, saved[shard.shard_id], shard)
        _found_cluster(files, opened, backup, state, cluster_id, topics, placed)
    except BaseException:
        for folder in folders:  # half a cluster is of no use
            discard_tree(disk, str(folder))
        raise
    finally:
        for one in opened:
            one.close()
    disk.sync_all()
    return Restored(cluster_id, folders, len(topics), len(placed), backup.size_bytes)


def _checked(source: Place, backup: Backup, disk: Disk, directory: Path, nodes: int) -> list[TopicMeta]:
    """Look at everything before anything is written; returns the topics as they will be."""
    if not 1 <= nodes <= NODES_MAX:
        raise InvalidRequestError(f"a cluster has 1 to {NODES_MAX} nodes, not {nodes}")
    if disk.exists(str(directory)) and disk.listdir(str(directory)):
        raise BackupError(f"{directory} is not empty: name a new directory with --dir; nothing was changed")
    found = verify_backup(source, backup)
    if found.problems:
        first = found.problems[0]
        raise BackupError(
            f"backup {backup.name} is damaged, nothing was changed: {first.what}. `antiphon backup verify {source.uri} "
            f"{backup.name}` shows all of it"
        )
    room = disk.free_bytes(next(str(one) for one in (directory, *directory.parents) if disk.exists(str(one))))
    topics = [
        topic for topic in topics_of(metadata_of(source, backup).state) if topic.name not in backup.without
    ]
    wanted = sum(_bytes_of(backup, topic) * min(topic.replicas, nodes) for topic in topics)
    if wanted > room:
        raise BackupError(f"{wanted} bytes do not fit on the disk of {directory}, which has {room} free")
    return [_fitting(topic, nodes) for topic in topics]


def _bytes_of(backup: Backup, topic: TopicMeta) -> int:
    return sum(shard.size_bytes for shard in backup.topic(topic.name).shards)


def _fitting(topic: TopicMeta, nodes: int) -> TopicMeta:
    """The topic with as many replicas as there are nodes for. Raises BackupError where its rules forbid that."""
    replicas = min(topic.replicas, nodes)
    if replicas < 1 or not topic.shards:
        raise BackupError(
            f"{topic.name} has {topic.replicas} replicas and {len(topic.shards)} shards in its metadata"
        )
    try:
        if replicas < topic.replicas:
            check_settings(topic.profile, topic.config, replicas, topic.kind)
    except InvalidRequestError as error:
        raise BackupError(
            f"{topic.name} has {topic.replicas} replicas and cannot have {replicas}: {error.message}; restore with --nodes "
            f"{topic.replicas}"
        ) from error
    return msgspec.structs.replace(topic, replicas=replicas)


def _place_all(topics: list[TopicMeta], nodes: int, saved: dict[int, ShardBackup]) -> dict[int, ShardMeta]:
    """Every shard with its new ensemble, no leader and a higher term, by id."""
    placed: dict[int, ShardMeta] = {}
    held, led = dict.fromkeys(range(nodes), 0), dict.fromkeys(range(nodes), 0)
    for topic in topics:
        loads = [NodeLoad(node, held[node], led[node]) for node in range(nodes)]
        ensembles = place(loads, len(topic.shards), topic.replicas)
        for shard, ensemble in zip(topic.shards, ensembles, strict=True):
            led[ensemble[0]] += 1
            for node in ensemble:
                held[node] += 1
            placed[shard.shard_id] = msgspec.structs.replace(
                shard,
                ensemble=ensemble,
                leader=ABSENT_NODE,
                term=max(shard.term, saved[shard.shard_id].term) + TERMS_ABOVE,
                status=ShardStatus.OFFLINE,
                live=ensemble if shard.live else (),
                outgoing=(),
                learners=(),
                goal=(),
                recovery=None,  # nobody of the time before it is in this cluster
            )
    return placed


def _restore_shard(
    files: ShardFiles,
    opened: list[NodeDirectory],
    folders: list[Path],
    saved: ShardBackup,
    shard: ShardMeta,
) -> None:
    """Make the replica once, and copy it to the other members."""
    first, *others = shard.ensemble
    end = files.make(opened[first], folders[first], saved, shard.term, Members(shard.ensemble))
    for node in others:
        files.copy(folders[first], folders[node], saved)
        opened[node].held(shard.shard_id).set(shard.term, end, durable=False)


def _found_cluster(
    files: ShardFiles,
    opened: list[NodeDirectory],
    backup: Backup,
    state: ClusterState,
    cluster_id: str,
    topics: list[TopicMeta],
    placed: dict[int, ShardMeta],
) -> None:
    """Write `__cluster` on its voters: the objects as of the cut, in the new cluster."""
    records = [cluster_record(ClusterRecord(cluster_id, bootstrapped=True))]
    # As if they had been there and were down: a node that comes back is taken at its word, and its shards get leaders.
    records += [
        node_record(NodeMeta(number, "", alive=False, disk_id=one.identity.disk_id))
        for number, one in enumerate(opened)
    ]
    records += [topic_record(msgspec.structs.replace(topic, shards=())) for topic in topics]
    for topic in topics:
        records += [shard_record(_record_of(state, topic, placed[shard.shard_id])) for shard in topic.shards]
    records += [counter_record(name, value) for name, value in state.counters.items()]
    for kind, objects in (
        ("user", state.access.users),
        ("acl", state.access.acls),
        ("quota", state.access.quotas),
    ):
        records += [access_record(kind, name, value) for name, value in objects.items()]
    if ALL_NODES in state.node_settings:  # those of single nodes were of other machines
        records.append(settings_record(state.node_settings[ALL_NODES]))
    records += [subscription_record(entry) for entry in state.subscriptions.values()]
    term, now_ms, batches, at = backup.cluster.term + TERMS_ABOVE, system.wall_ms(), [], 0
    for start in range(0, len(records), BATCH_RECORDS):
        some = [
            (key, value, headers_of(key, value), now_ms)
            for key, value in records[start : start + BATCH_RECORDS]
        ]
        batches.append(build_batch(some, base_offset=at, leader_epoch=term))
        at += len(some)
    voters = min(VOTERS_MAX, len(opened))
    for directory in opened[: voters if voters % 2 else voters - 1]:
        files.write_log(directory, CLUSTER_SHARD_ID, batches, term)


def _record_of(state: ClusterState, topic: TopicMeta, shard: ShardMeta) -> ShardRecord:
    by_hand = state.shards[shard.shard_id].appointed != ABSENT_NODE
    return ShardRecord(topic.topic_id, shard, appointed=shard.ensemble[0] if by_hand else ABSENT_NODE)
