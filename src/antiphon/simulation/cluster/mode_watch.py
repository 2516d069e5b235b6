"""What has to hold of the ways to replicate, in whole nodes: members that change, live sets, markers, announced losses.

- `durable-majority`: what becomes committed is held by a majority of each voting set; what is committed is still held by a
  majority that every election has to meet when the coordinator records other members.
- `durable-live`: where elections go by the live replica set, each of its recorded members holds what is committed.
- `min-live`: nothing is committed with fewer live members than the topic demands.
- `members-meet`: where replicas vote, no two of the members that may be in force could decide without each other.
- `marker-after-commit`: what a marker in the log says to be committed is committed when it is written.
- `loss-told`: a node that cuts off what it has told clients to be written says so.
"""

from typing import TYPE_CHECKING, Any

from antiphon.coordination.fences import Fence, voting_sets
from antiphon.coordination.profiles import replication_of
from antiphon.log.segment import DATA_SUFFIX, SNAPSHOT_SUFFIX
from antiphon.records.builder import committed_of
from antiphon.replication.actions import LostTail
from antiphon.replication.members import Members
from antiphon.replication.quorum import majority
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica_state import Role
from antiphon.simulation.cluster.disk_view import shard_path
from antiphon.simulation.cluster.evidence import Evidence
from antiphon.simulation.cluster.recovery_watch import Expected, RecoveryWatch
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from antiphon.log.operations import LogOp
    from antiphon.model.metadata import ShardMeta, TopicMeta
    from antiphon.node.node import Node
    from antiphon.partition.single_writer import SingleWriterPartition
    from antiphon.records.batch import Buffer
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.cluster.truth import Batch

Record = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]


def do_meet(one: Members, other: Members) -> bool:
    """Does every decision by the one need somebody whom every decision by the other needs?"""
    return any(_majorities_meet(a, b) for a in one.sets for b in other.sets)


def _majorities_meet(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    both = len(set(one) & set(other))
    least = [max(0, majority(len(each)) - (len(each) - both)) for each in (one, other)]
    return sum(least) > both


class ModeWatch:
    """See the module's text. `Watch` asks it at the moments that it looks at itself."""

    def __init__(
        self, evidence: Evidence, machines: "list[Machine]", expected: "tuple[Expected, Expected]"
    ) -> None:
        self.recoveries = RecoveryWatch(evidence, self._has, self._is_empty, expected)
        self._evidence = evidence
        self._machines = machines
        self.version = -1  # of the newest metadata that any node had
        self._records: dict[int, Record] = {}  # by shard, as the coordinator has recorded them last
        self.markers: list[
            tuple[int, int, int]
        ] = []  # written in this step: node, shard, what they say is committed
        self._told: dict[
            tuple[int, int], int
        ] = {}  # (node, shard) -> how far clients were told that it is written

    # -- what the coordinator records -----------------------------------------------------------------------------------

    def look(self, node: "Node") -> None:
        """A step of this node is over; what it has committed is judged after this, by the records that it knows.

        A voter of `__cluster` knows what is committed there before its own node is told with the other nodes.
        """
        shell = node.coordinator
        if shell is not None and shell.state.version > self.version:
            state = shell.state
            self.version = state.version
            self._look_at_records(
                ((state.topics[state.names[one.topic_id]], one.meta) for one in state.shards.values()),
                {one.node_id for one in state.nodes.values() if one.alive},
            )
        elif node.view.version > self.version:
            self.version = node.view.version
            alive = {one.node_id for one in node.view.nodes.values() if one.alive}
            self._look_at_records(node.view.all_shards(), alive)

    def _look_at_records(self, records: "Iterable[tuple[TopicMeta, ShardMeta]]", alive: set[int]) -> None:
        for topic, shard in records:
            record = (shard.ensemble, shard.outgoing, shard.live, shard.fence)
            if shard.recovery is not None:
                before = self._records.get(shard.shard_id, ((), (), (), ""))
                sets = tuple(each for each in before[:2] if each) if before[3] == Fence.MAJORITY else ()
                self.recoveries.look(shard, sets, alive.__contains__)
            if self._records.get(shard.shard_id) == record:
                continue
            self._records[shard.shard_id] = record
            replication = replication_of(topic.profile, topic.config)
            if replication.is_multi or replication.election == "raft" or replication.unclean or shard.split:
                continue
            self._check_record(shard)
        self.recoveries.note_alive(alive)

    def _check_record(self, shard: "ShardMeta") -> None:
        """Is what is committed where the elections of this record look for it?"""
        truth = self._evidence.truths.get(shard.shard_id)
        if truth is None or not truth.batches:
            return
        last = truth.batches[-1]
        if shard.fence != Fence.MAJORITY:
            lacking = [node for node in shard.live if not self._has(node, shard.shard_id, last)]
            if not lacking:
                return
            require(
                shard.fence != Fence.LIVE,
                "durable-live",
                f"{list(shard.live)} are recorded as live; {lacking} do not hold what is committed up to {last.next_offset}",
                shard.shard_id,
            )
        sets = voting_sets(shard)
        have = [[node for node in each if self._has(node, shard.shard_id, last)] for each in sets]
        require(
            any(len(there) >= majority(len(each)) for there, each in zip(have, sets, strict=True)),
            "durable-majority",
            f"the voters are recorded as {sets}, and of them only {have} hold what is committed up to {last.next_offset}",
            shard.shard_id,
        )

    def _is_empty(self, node_id: int, shard_id: int) -> bool:
        """Is this node's replica open, without an entry?"""
        host = self._machines[node_id].hosts.get(shard_id)
        return host is not None and host.log.log_end == 0

    def _has(self, node_id: int, shard_id: int, batch: "Batch") -> bool:
        """Does this node's disk hold the batch, what compaction has left of it, or a snapshot in its place?"""
        machine, evidence = self._machines[node_id], self._evidence
        if node_id in evidence.hurt or evidence.holds(machine, shard_id, batch.base_offset, batch.data):
            return True
        if evidence.truth(shard_id).compaction is not None:
            # What may be gone of it is judged where segments are put in place. Its end and term stay.
            log = evidence.durable_log(node_id, shard_id)
            if log.has_end(machine.disk, batch.next_offset, batch.term):
                return True
        names = machine.disk.durable_names(shard_path(shard_id))
        starts = [int(name[: -len(DATA_SUFFIX)]) for name in names if name.endswith(DATA_SUFFIX)]
        if not starts:
            return any(name.endswith(SNAPSHOT_SUFFIX) for name in names)
        return min(starts) > batch.base_offset

    # -- commits --------------------------------------------------------------------------------------------------------

    def committed(self, host: "SingleWriterPartition", before: Members, batch: "Batch") -> None:
        """A leader has committed this batch. `before`: its members as of the step before."""
        live = host.replica.live
        if live:
            self._check_live(host, live, batch)
        else:
            self._check_sets(host, before, batch)

    def _check_live(self, host: "SingleWriterPartition", live: tuple[int, ...], batch: "Batch") -> None:
        least = 1 if host.state.settings is None else host.state.settings.replica.min_live
        require(
            len(live) >= least,
            "min-live",
            f"node {host.services.node_id} commits {batch.base_offset} with {list(live)} as live; {least} are demanded",
            host.shard_id,
        )
        have = [node for node in live if self._has(node, host.shard_id, batch)]
        require(
            len(have) == len(live),
            "durable-majority",
            f"node {host.services.node_id} commits the batch at {batch.base_offset}, durable on {have} of {live}",
            host.shard_id,
        )
        _, _, recorded, fence = self._records.get(host.shard_id, ((), (), (), ""))
        lacking = [node for node in recorded if not self._has(node, host.shard_id, batch)]
        require(
            fence != Fence.LIVE or not lacking,
            "durable-live",
            f"node {host.services.node_id} commits {batch.base_offset}; {list(recorded)} are recorded as live, "
            f"and {lacking} do not hold it",
            host.shard_id,
        )

    def _check_sets(self, host: "SingleWriterPartition", before: Members, batch: "Batch") -> None:
        """Held by a majority of each set that the leader went by.

        Where its members changed in this step, what lies behind the entry of the older ones may have been counted by either.
        """
        replica = host.replica
        counted = [before]
        if replica.members != before:
            is_sure = before.is_joint and host.snapshots.members_at(batch.base_offset) not in {before, None}
            counted = [before] if is_sure else [before, replica.members]
        shard_id = host.shard_id
        rule = replica.config.commit
        for members in counted:
            have = [[node for node in each if self._has(node, shard_id, batch)] for each in members.sets]
            needed = [max(majority(len(each)), rule.enough(len(each))) for each in members.sets]
            if all(len(there) >= enough for there, enough in zip(have, needed, strict=True)):
                return
        require(
            False,
            "durable-majority",
            f"the batch at {batch.base_offset} is committed by node {host.services.node_id} with {counted}, and durable on "
            f"{have}: {needed} are needed",
            shard_id,
        )

    def members_changed(self, machine: "Machine", host: "SingleWriterPartition") -> None:
        """A replica goes by other members than a step ago."""
        replica = host.replica
        if replica.role is not Role.LEADER or not isinstance(replica, RaftReplica):
            return
        committed = self._evidence.truth(host.shard_id).end
        ends = [committed, *(end for end, _ in host.log.members.items() if end > committed)]
        begins = self.recoveries.begins.get(host.shard_id, -1)
        ends = [end for end in ends if end > begins]  # who decided before a recovery decides no more
        known = [replica.members_at(end) for end in ends]
        found = [members for members in known if members is not None]
        for one in found:
            for other in found:
                require(
                    do_meet(one, other),
                    "members-meet",
                    f"node {machine.node_id} leads term {replica.term}, and of the members that may be in force {one} and "
                    f"{other} could each decide without the other",
                    host.shard_id,
                )

    # -- what leaders write and say ---------------------------------------------------------------------------------------

    def listen(self, machine: "Machine", host: "SingleWriterPartition") -> None:
        """Look on when this replica writes markers, tells clients what is written, and says what is lost."""
        settings = host.state.settings
        if settings is not None and settings.replica.commit_marker:
            self._listen_to_markers(machine, host)
        if host.mode.acknowledges_early:
            self._listen_to_losses(machine, host)

    def _listen_to_markers(self, machine: "Machine", host: "SingleWriterPartition") -> None:
        stage = host.log.stage_append

        def staged(batches: "Sequence[Buffer]", *others: Any) -> "LogOp":
            is_judged = host.replica.role is Role.LEADER and not host.mode.acknowledges_early
            for batch in batches if is_judged else ():
                mark = committed_of(batch)
                if mark is not None:
                    self.markers.append((machine.node_id, host.shard_id, mark))
            return stage(batches, *others)

        host.log.stage_append = staged  # type: ignore[assignment]

    def judge_markers(self) -> None:
        """All that this step has committed is known: hold what was written down in it against that."""
        while self.markers:
            self._check_marker(*self.markers.pop())

    def _check_marker(self, node_id: int, shard_id: int, mark: int) -> None:
        committed = self._evidence.truth(shard_id).end
        require(
            mark <= committed,
            "marker-after-commit",
            f"node {node_id} writes down that {mark} is committed, and {committed} is",
            shard_id,
        )

    def _listen_to_losses(self, machine: "Machine", host: "SingleWriterPartition") -> None:
        key = (machine.node_id, host.shard_id)
        self._told[key] = min(self._told.get(key, 0), host.log.log_end)
        tell, act = host.clients.committed, host.driver.carry_out
        lose = act[LostTail]

        def told(high_watermark: int) -> None:
            if host.replica.role is Role.LEADER:
                self._told[key] = max(self._told[key], high_watermark)
            tell(high_watermark)

        def lost(action: LostTail) -> None:
            self._told[key] = min(self._told[key], action.from_offset)
            lose(action)

        host.clients.committed = told  # type: ignore[method-assign]
        act[LostTail] = lost

    def was_cut(self, machine: "Machine", host: "SingleWriterPartition", to_offset: int) -> None:
        """A replica has cut its log."""
        told = self._told.get((machine.node_id, host.shard_id), 0)
        require(
            told <= to_offset or machine.node_id in self._evidence.hurt,
            "loss-told",
            f"node {machine.node_id} cuts its log to {to_offset} and says nothing; "
            f"it has told clients that all up to {told} is written",
            host.shard_id,
        )
