"""A whole cluster that was restored from a backup, in the place of the one that made it: what it must have.

The watchers of a run go on, with what was committed at the backup's cut as what is committed: so a replica that has more,
less or something else is found by the same promises as in a cluster that was never backed up. Beside these:

- `restore-is-the-cut`: users, lists, quotas, counters, topics and shards are what the log of metadata had come to at the
  cut; no log begins later than one did at the cut; clients read what was committed there.
- `restore-decides`: what a transaction had written is committed, or aborted, if that was decided at the cut; without a
  decision it is not committed.
"""

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from antiphon.backup.manifest import Backup
from antiphon.backup.place import Place
from antiphon.backup.verify import log_of
from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.transactions import PREPARED, Row, State
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.model.metadata import CLUSTER_SHARD_ID, Kind, TopicMeta
from antiphon.records.batch import read_header
from antiphon.records.builder import end_marker_of, members_of
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster.evidence import Evidence
from antiphon.simulation.cluster.metadata_watch import Objects, objects_of
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.coordination.state import ClusterState
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.truth import Batch, ShardTruth

AGED: Final = {"retention.ms", "retention.bytes"}  # settings of topics whose logs are trimmed by themselves
REPLACED: Final = {
    "cluster",
    "voters",
    "recovery",
    "node",
    "topic",
    "shard",
}  # kinds that are of a cluster's own, or changed
OF_ONE_NODE: Final = re.compile(r"settings/\d+")  # and of its machine


class Open(NamedTuple):
    """A transaction that has written to a shard and has no marker there at the cut. `decided`: None: it is under way."""

    shard_id: int
    producer_id: int
    decided: bool | None


class KnownCut:
    """What was committed at a backup's cut, by what nodes had said before, and nothing that is in the backup.

    Where a commit rule may lose what a leader holds for committed, the backup's own batches take the place of what nobody
    else knew of.
    """

    def __init__(self, cluster: "SimulatedCluster", place: Place, backup: Backup) -> None:
        self.backup = backup
        self._objects = cluster.metadata.at(backup.cluster.end)
        self._truths: dict[int, ShardTruth] = {}
        for saved in backup.shards[1:]:
            truth = self._truths[saved.shard_id] = cluster.evidence.truth(saved.shard_id).up_to(saved.end)
            for header, batch in log_of(place, saved) if truth.end < saved.end else ():
                if header.base_offset >= truth.end:
                    truth.take(header, batch, backup.name)
        transactions = [topic for topic in backup.topics if topic.name == TRANSACTIONS_TABLE]
        rows = _rows(self._truths[one.shard_id] for topic in transactions for one in topic.shards)
        self._open = [one for truth in self._truths.values() for one in _open_in(truth, rows)]

    def evidence(self) -> Evidence:
        """What a cluster that is restored from the backup begins with. Of `__cluster` it begins anew."""
        found = Evidence()
        found.truths = {shard_id: truth.up_to(truth.end) for shard_id, truth in self._truths.items()}
        return found

    def truth(self, shard_id: int) -> "ShardTruth":
        """What was committed in a shard."""
        return self._truths[shard_id]

    # -- metadata -----------------------------------------------------------------------------------------------

    def check_metadata(self, state: "ClusterState") -> None:
        """Hold the metadata of the restored cluster against those at the cut. Nobody has changed them since."""
        if self._objects is None:
            return  # long ago
        wanted, found = self._objects, objects_of(state)
        copied, before = _copied(found), _copied(wanted)
        self.require(copied == before, CLUSTER_SHARD_ID, _differ(copied, before))
        topics, topics_before = self._topics(found), self._topics(wanted)
        self.require(topics == topics_before, CLUSTER_SHARD_ID, f"topics: {_differ(topics, topics_before)}")
        ids = {topic.topic_id for topic in topics.values()}
        shards, shards_before = _shards(found, ids), _shards(wanted, ids)
        self.require(
            shards.keys() == shards_before.keys(), CLUSTER_SHARD_ID, f"it has shards {sorted(shards)}"
        )
        for shard_id, record in shards.items():
            before_it = shards_before[shard_id]
            self.require(
                _kept(record) == _kept(before_it) and record.meta.term > before_it.meta.term,
                shard_id,
                f"the shard is recorded as {record}, and was {before_it}",
            )

    def _topics(self, objects: Objects) -> dict[str, TopicMeta]:
        """Without how many replicas they have: there may be fewer nodes."""
        found = [msgspec.msgpack.decode(one, type=TopicMeta) for one in _of_kind(objects, "topic").values()]
        return {
            one.name: msgspec.structs.replace(one, replicas=0)
            for one in found
            if one.name not in self.backup.without
        }

    def require(self, condition: bool, shard_id: int, what: str) -> None:
        """Raise ViolationError unless this is as it was at the cut."""
        require(condition, "restore-is-the-cut", f"restored from {self.backup.name}: {what}", shard_id)

    # -- logs and transactions ----------------------------------------------------------------------------------

    def check_named(self, cluster: "SimulatedCluster") -> None:
        """Learn what the restored logs have behind the cut: one entry that names members, where replicas vote."""
        for machine in cluster.machines:
            for shard_id, before in self._truths.items():
                cluster.evidence.learn_from(machine, shard_id)
                truth = cluster.evidence.truth(shard_id)
                more = truth.batches[len(before.batches) :]
                self.require(
                    not more or (len(more) == 1 and members_of(more[0].data) is not None),
                    shard_id,
                    f"the log on node {machine.node_id} goes on behind the cut at {before.end} with {more}",
                )

    def check_starts(self, cluster: "SimulatedCluster") -> None:
        """No log begins later than the latest did at the cut; of a table, than its state. But for retention nobody has
        trimmed one since.
        """
        latest: dict[int, int] = {}
        for topic in self.backup.topics:
            for saved in () if AGED & topic.config.keys() else topic.shards:
                of_state = 0 if saved.state is None or topic.kind != Kind.TABLE.value else saved.state.offset
                latest[saved.shard_id] = max(self._truths[saved.shard_id].latest_start, of_state)
        for machine in cluster.machines:
            for shard_id, host in machine.hosts.items():
                newest, start = latest.get(shard_id, host.log.log_start), host.log.log_start
                self.require(
                    start <= newest,
                    shard_id,
                    f"the log on node {machine.node_id} begins at {start}, none did later than {newest}",
                )

    @property
    def decided(self) -> int:
        """How many parts of transactions had a decision at the cut, and no marker."""
        return sum(one.decided is not None for one in self._open)

    def unfinished(self, cluster: "SimulatedCluster") -> list[Open]:
        """Transactions without a marker, of those that were decided. Raises ViolationError for markers that are wrong."""
        found = []
        for one in self._open:
            truth, said = cluster.evidence.truth(one.shard_id), None
            for batch in truth.batches[len(self._truths[one.shard_id].batches) :]:
                header = read_header(batch.data)
                if said is None and header.is_control and header.producer_id == one.producer_id:
                    said = end_marker_of(batch.data)
            require(
                said is None or said[0] is bool(one.decided),
                "restore-decides",
                f"{one} at the cut of {self.backup.name}; its marker in the restored cluster is {said}",
                one.shard_id,
            )
            if said is None and one.decided is not None:
                found.append(one)
        return found


def _of_kind(objects: Objects, kind: str) -> Objects:
    return {key: value for key, value in objects.items() if key.startswith(f"{kind}/")}


def _copied(objects: Objects) -> Objects:
    return {
        key: value
        for key, value in objects.items()
        if key.partition("/")[0] not in REPLACED and not OF_ONE_NODE.fullmatch(key)
    }


def _shards(objects: Objects, topic_ids: set[bytes]) -> dict[int, ShardRecord]:
    found = [msgspec.msgpack.decode(one, type=ShardRecord) for one in _of_kind(objects, "shard").values()]
    return {one.meta.shard_id: one for one in found if one.topic_id in topic_ids}


def _kept(record: ShardRecord) -> Any:
    """What a restored shard has of before."""
    meta = record.meta
    return record.topic_id, meta.index, meta.hashes, meta.split, meta.own_start, meta.deleted_before


def _differ(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    keys = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    return f"{[(key, found.get(key), wanted.get(key)) for key in keys[:3]]} differ"


def _rows(truths: Any) -> dict[int, Row]:
    """The newest row of each transactional id, by the producer that it names."""
    newest: dict[bytes, bytes | None] = {}
    for truth in truths:
        newest |= {bytes(one.key or b""): one.value for one in truth.records()}
    rows = [msgspec.msgpack.decode(value, type=Row) for value in newest.values() if value]
    return {row.producer_id: row for row in rows}


def _open_in(truth: "ShardTruth", rows: dict[int, Row]) -> list[Open]:
    opened = []
    for producer_id in open_in(truth):
        row = rows.get(producer_id)
        is_decided = row is not None and row.state in PREPARED
        decided = row is not None and row.state is State.PREPARE_COMMIT if is_decided else None
        opened.append(Open(truth.shard_id, producer_id, decided))
    return opened


def open_in(truth: "ShardTruth") -> set[int]:
    """Producers whose transactions have written to a shard, and have no marker there."""
    found: set[int] = set()
    for batch in truth.batches:
        header = read_header(batch.data)
        if header.is_transactional and not header.is_control:
            found.add(header.producer_id)
        elif header.is_control and end_marker_of(batch.data) is not None:
            found.discard(header.producer_id)
    return found


def committed_in(truth: "ShardTruth") -> list[tuple[int, bytes | None]]:
    """Offsets and values of all records of a topic's shard, but for those of aborted transactions, and of open ones."""
    found: list[tuple[int, bytes | None]] = []
    waiting: dict[int, list[tuple[int, bytes | None]]] = {}
    for batch in truth.batches:
        header = read_header(batch.data)
        if header.is_control:
            said, ended = end_marker_of(batch.data), waiting.pop(header.producer_id, [])
            found += ended if said is not None and said[0] else []
            continue
        records = [(one.offset, one.value) for one in decode_records(batch.data)]
        (waiting.setdefault(header.producer_id, []) if header.is_transactional else found).extend(records)
    return sorted(found)


def repeatable(truth: "ShardTruth") -> "list[Batch]":
    """The last batch of each producer that numbers its batches, outside of transactions."""
    found: dict[int, Batch] = {}
    for batch in truth.batches:
        header = read_header(batch.data)
        if header.producer_id >= 0 and not header.is_control:
            found.pop(header.producer_id, None)
            if not header.is_transactional:
                found[header.producer_id] = batch
    return list(found.values())
