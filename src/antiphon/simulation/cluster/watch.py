"""What has to hold after every step, read from the nodes' real state and from what their disks durably hold.

- `log-matching`: below what a replica knows to be settled, its log is byte for byte that of the others.
- `durable-majority`: what becomes committed lies on the disks of as many voters as the rule asks for, and would be found
  there after a power failure.
- `durable-promise`: a term or vote that is spoken of is on the disk.
- `durable-ack`: the end of a log that is acknowledged is on the disk.
- `one-vote`, `promise-kept`: a replica votes once in a term, and speaks in no term below one it has promised, over restarts.
- `no-false-evidence`: a replica whose disk lost something that was committed votes for nobody, and says that it is damaged,
  until it has all of it again.
- `watermark`: nothing is settled beyond the log's end; settled offsets only rise while a process lives.
- `one-leader`: no two replicas lead one shard in one term.
- `leader-completeness`: who leads has all that was committed in older terms.
- `applied-committed`: a table's store is never ahead of what is committed.
- `applied-first`: a table's store has what clients are told is committed, before they are told.
- `producers-known`: of a log that was cut, no producer's last batch is behind the end.
- `committed-kept`: no replica cuts off what is committed.
- `older-term`: what a leader commits ends with an entry of its own term.
- `loss-noticed`: a log that lost what was durable is found damaged.
- `sound-log`: what a start has read of a log, and goes on from, is whole by its checksums.
- `no-loss`: no log is found damaged on a disk that lost nothing.
- `no-crash`: no replica stops for a reason of its own.

`shell_watch` has what holds where a shell acts on its own account, `watch_multi` what holds where every replica writes,
`mode_watch` what holds of members, live sets, markers and announced losses, `table_watch` what tables' rows are.

What the checks read they read from memory or past the disk's calls, so that looking changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError, InternalError
from antiphon.log.simulated_disk import SimulatedFile
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.batch import Buffer, read_header
from antiphon.replication.messages import Ack, NewTermReply, VoteReply
from antiphon.replication.replica_state import Role
from antiphon.simulation.cluster import log_checks
from antiphon.simulation.cluster.disk_view import promise_of, shard_path
from antiphon.simulation.cluster.evidence import Evidence
from antiphon.simulation.cluster.kept_word import WORDS, KeptWord
from antiphon.simulation.cluster.marked_logs import check_own_log
from antiphon.simulation.cluster.mode_watch import ModeWatch
from antiphon.simulation.cluster.shell_watch import check_applied, listen_to_host, listen_to_node
from antiphon.simulation.cluster.table_watch import TableWatch, WatchedTable
from antiphon.simulation.cluster.watch_multi import SAYS, MultiWatch
from antiphon.simulation.cluster.world import World
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.log.disk import File
    from antiphon.log.operations import LogOp
    from antiphon.log.segment import Segment
    from antiphon.log.snapshot import SegmentSummary
    from antiphon.node.node import Node
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.machine import Machine

READ_BYTES: Final = 1 << 24
PROMISES: Final = (NewTermReply, VoteReply, Ack)
SPOKEN: Final = {*PROMISES, *WORDS, *SAYS}
"""What is held against a promise when it is said. None of these has subclasses."""


class _Seen:
    """What was seen last of one replica."""

    __slots__ = (
        "checked", "host", "in_term", "led_term", "log", "members", "ready_term", "replica", "settled", "state",
        "table",
    )  # fmt: skip

    def __init__(self, node_id: int, host: "SingleWriterPartition") -> None:
        self.host = host
        self.table = None if host.table is None else WatchedTable(node_id, host)
        self.replica = host.replica
        # What is looked at after each step is read without a call.
        self.state, self.log, self.in_term = host.state, host.replica.log, host.replica.in_term
        self.members = host.replica.members  # that it went by at the end of the last step
        self.settled = -1
        self.checked = host.log.log_start
        self.led_term = 0  # it led in at the end of the last step
        self.ready_term = 0


NOBODY: Final[tuple[int, list[_Seen]]] = (-1, [])


class Watch:
    """See the module's text."""

    def __init__(self, world: World, evidence: Evidence, machines: "list[Machine]") -> None:
        self._world = world
        self._evidence = evidence
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._leaders: dict[tuple[int, int], int] = {}  # (shard, term) -> node
        self._stopped: set[tuple[int, int]] = set()
        self._had: dict[tuple[int, int], int] = {}  # how far the log was durable when the process ended
        # By node: how many hosts, and what was seen of them.
        self._gathered: dict[int, tuple[int, list[_Seen]]] = {}
        self.held: dict[tuple[int, int], int] = {}  # (node, shard) -> committed end before a disk was hurt
        self.word = KeptWord(may_move=world.options.moves_replicas)
        self._broken: ViolationError | None = None  # seen in the middle of a step
        self.multi = MultiWatch(evidence, world.options, self._judge, self._look_at_failed)
        self.modes = ModeWatch(evidence, machines, (self._had, self.held))
        self.recoveries = self.modes.recoveries
        self.tables = TableWatch(evidence)

    # -- nodes come and go ------------------------------------------------------------------------------------------

    def node_made(self, machine: "Machine", node: "Node") -> None:
        """Listen to what a node says to others."""
        speak = node.send_message

        def listened(to: int, message: Any) -> None:
            if type(message) in SPOKEN:
                self._judge(self._check_spoken, machine, node, message, to)
            speak(to, message)

        node.send_message = listened
        listen_to_node(self._judge, machine, node)

    def _check_spoken(self, machine: "Machine", node: "Node", message: Any, to: int) -> None:
        kind = type(message)
        if kind in PROMISES:
            self._check_promise(machine, message, to)
        if kind in WORDS:
            self.word.check(machine.node_id, message, to)
        if kind is Ack:
            self._check_ack(machine, node, message)
        if kind in SAYS:
            self.multi.check_said(machine, node, message)
        if self.recoveries.old:
            self.recoveries.check_spoken(machine.node_id, message)

    def node_gone(self, machine: "Machine", node: "Node") -> None:
        """A process ended: the next one begins with what its disk says."""
        self._gathered.pop(machine.node_id, None)
        self.tables.node_gone(machine.node_id)
        self._judge(self.modes.look, node)  # what it learned in that step, it went by
        self._look_at_last_step(machine)
        self.multi.node_gone(machine)
        for key in [key for key in self._seen if key[0] == machine.node_id]:
            host = self._seen.pop(key).host
            if not host.state.closed and host.log.config.flush == "always":
                self._had[key] = host.log.durable_end
        self._stopped = {key for key in self._stopped if key[0] != machine.node_id}

    def _look_at_last_step(self, machine: "Machine") -> None:
        """The power failed in the middle of a step: what its leaders have committed in it is committed, and counts."""
        for (node_id, _), seen in self._seen.items():
            host, replica = seen.host, seen.replica
            is_news = replica.role is Role.LEADER and replica.settled != seen.settled
            if node_id == machine.node_id and is_news and host.state.failed is None:
                self._judge(self._look_at_commit, machine, host, seen, replica.settled)
        self._judge(self.modes.judge_markers)

    def _judge(self, check: Callable[..., None], *facts: Any) -> None:
        """Check something in the middle of a step; what is found ends the run after it, whatever the node makes of it."""
        try:
            check(*facts)
        except ViolationError as error:
            self._broken = self._broken or error

    def _check_ack(self, machine: "Machine", node: "Node", message: Ack) -> None:
        host, (term, end) = node.hosts.get(message.shard), message.end
        if host is None or machine.node_id in self._evidence.hurt or end <= host.log.log_start:
            return
        if host.log.config.flush != "always":
            return
        if not self._evidence.durable_log(machine.node_id, message.shard).has_end(machine.disk, end, term):
            raise ViolationError(
                "durable-ack",
                f"node {machine.node_id} says {message!r}, and its disk has no batch of term {term} that ends at {end}",
                message.shard,
            )

    def _check_promise(self, machine: "Machine", message: Any, to: int) -> None:
        if isinstance(message, VoteReply) and (message.pre_vote or not message.granted):
            return
        if machine.node_id in self._evidence.hurt and not isinstance(message, Ack):
            self._check_evidence(machine, message)
        term, vote = promise_of(machine.disk, shard_path(message.shard))
        if term < message.term:
            raise ViolationError(
                "durable-promise",
                f"node {machine.node_id} says {message!r} to node {to}, and the term on its disk is {term}",
                message.shard,
            )
        if isinstance(message, VoteReply) and term == message.term:
            require(
                vote == to,
                "durable-promise",
                f"node {machine.node_id} votes for node {to} in term {term}, and the vote on its disk is for {vote}",
                message.shard,
            )

    def _check_evidence(self, machine: "Machine", message: Any) -> None:
        """Of what this disk held before it was hurt the replica has everything again, or says that it has not."""
        host = machine.hosts.get(message.shard)
        held = self.held.get((machine.node_id, message.shard), 0)
        if host is None or getattr(message, "damaged", False):
            return
        if machine.has_new_disk and not host.mode.elects_itself and machine.is_disk_known():
            return  # the coordinator knows what the promise of such a replica is worth
        require(
            host.log.durable_end >= held,
            "no-false-evidence",
            f"node {machine.node_id} says {message!r} with a log up to {host.log.durable_end}; before its disk was hurt it "
            f"held what is committed up to {held}",
            message.shard,
        )

    def note_held(self, machine: "Machine") -> None:
        """How much of what is committed the replicas of this machine hold on its disk, now."""
        for shard_id, host in machine.hosts.items():
            self.held[machine.node_id, shard_id] = min(
                self._evidence.truth(shard_id).end, host.log.durable_end
            )

    def disk_is_new(self, machine: "Machine") -> None:
        """An empty disk is in the place of this machine's. That it lost what there was is for its identity to say."""
        for key in [key for key in self._had if key[0] == machine.node_id]:
            del self._had[key]

    # -- after each step --------------------------------------------------------------------------------------------

    def look(self, machine: "Machine", node: "Node") -> None:
        """A step of this node is over. This is called after each step: mostly it takes a few comparisons a host.

        They are the most frequent ones of a run, so they read plain attributes, and nothing is called before one differs.
        """
        if self._broken is not None:
            raise self._broken
        self.multi.look(machine, node)
        modes = self.modes
        modes.look(node)
        count, found = self._gathered.get(machine.node_id, NOBODY)
        if count != len(node.hosts) or not self._look_at_open(machine, found):
            for seen in self._gather(machine, node, found):
                self._look_at_host(machine, seen)
        if modes.markers:
            modes.judge_markers()
        if self.tables.behind:
            self.tables.look_again()

    def _look_at_open(self, machine: "Machine", found: list[_Seen]) -> bool:
        """False if one of them was closed: those that come after it have not been looked at."""
        leader = Role.LEADER
        for seen in found:
            in_term, state = seen.in_term, seen.state
            if (
                seen.log.settled != seen.settled
                or in_term.members is not seen.members
                or (in_term.role is leader and in_term.term != seen.ready_term)
                or state.closed
                or state.failed is not None
            ):
                if state.closed:
                    return False
                self._look_at_host(machine, seen)
        return True

    def _look_at_host(self, machine: "Machine", seen: _Seen) -> None:
        host, replica = seen.host, seen.replica
        if host.state.failed is not None:
            self._look_at_failed(machine, host)
            return
        if self.recoveries.is_old(machine.node_id, host.shard_id):
            seen.settled = replica.settled  # what it takes for committed is so no more
            return
        settled = replica.settled
        if settled != seen.settled:
            self._look_at_commit(machine, host, seen, settled)
            if seen.table is not None:
                self.tables.look(seen.table)
        if replica.role is Role.LEADER and seen.ready_term != replica.term:
            self._look_at_leader(machine, host, seen)
            seen.led_term = replica.term
        if replica.members is not seen.members:
            seen.members = replica.members
            self.modes.members_changed(machine, host)

    def _gather(self, machine: "Machine", node: "Node", before: list[_Seen]) -> list[_Seen]:
        """The hosts of a node that have one writer, when one was opened or closed."""
        hosts = node.hosts
        for was in before:  # one that was closed in this step may have committed, and answered, in it before
            if hosts.get(was.host.shard_id) is not was.host and was.replica.settled != was.settled:
                self._look_at_commit(machine, was.host, was, was.replica.settled)
        found: list[_Seen] = []
        for shard_id, host in hosts.items():
            if isinstance(host, SingleWriterPartition):
                seen = self._seen.get((machine.node_id, shard_id))
                if seen is None or seen.host is not host:
                    seen = self._seen[machine.node_id, shard_id] = self._meet(machine, host)
                found.append(seen)
        self._gathered[machine.node_id] = (len(hosts), found)
        return found

    def _meet(self, machine: "Machine", host: "SingleWriterPartition") -> _Seen:
        """A replica was opened: was there cause to take its log for damaged? From now on, listen to what clients hear."""
        self.recoveries.opened(machine, host)
        if self.recoveries.is_old(machine.node_id, host.shard_id):
            return _Seen(machine.node_id, host)
        damaged = host.log.damaged
        require(
            damaged is None
            or damaged.joins
            or machine.node_id in self._evidence.hurt
            or log_checks.may_have_been_placed(machine, damaged)
            or (self._world.options.changes_voters and log_checks.is_new_voter(host)),
            "no-loss",
            f"node {machine.node_id} takes its log for damaged, and its disk lost nothing: {damaged}",
            host.shard_id,
        )
        had = self._had.pop((machine.node_id, host.shard_id), 0)
        require(
            damaged is not None
            or host.log.recovery.log_end >= had  # its leader may have cut it since, in the same step
            or self._world.options.moves_replicas,  # who may have moved it away, and back
            "loss-noticed",
            f"node {machine.node_id} had a durable log up to {had}, and goes on from "
            f"{host.log.recovery.log_end} as if that was all",
            host.shard_id,
        )
        if damaged is None:
            log_checks.check_opened(machine.disk, shard_path(host.shard_id), host, machine.node_id)
        settled, committed = host.replica.settled, self._evidence.truth(host.shard_id).end
        require(
            settled <= committed or host.table is not None,  # a store is written in the step of the commit
            "watermark",
            f"node {machine.node_id} begins with {settled} as settled, committed is {committed}",
            host.shard_id,
        )
        self._listen(machine, host)
        seen = _Seen(machine.node_id, host)
        if seen.table is not None and host.state.failed is None:
            self.tables.look(seen.table)
        return seen

    def _listen(self, machine: "Machine", host: "SingleWriterPartition") -> None:
        """Look on when clients are told what is committed, and when the log is cut or taken for whole again."""
        tell, cut, clear = host.clients.committed, host.log.truncate, host.log.clear_damage
        node_id = machine.node_id
        self._judge_own_log(host, node_id)

        def told(high_watermark: int) -> None:
            self._judge(check_applied, machine, host, high_watermark, "tells clients of")
            tell(high_watermark)

        def was_cut(to_offset: int) -> "LogOp":
            self._judge(log_checks.check_cut, self._evidence.truth(host.shard_id), host, to_offset, node_id)
            op = cut(to_offset)
            self._judge(log_checks.check_producers, self._evidence.truth(host.shard_id), host, node_id)
            self._judge_own_log(host, node_id)
            self._judge(self.modes.was_cut, machine, host, to_offset)
            return op

        def is_whole() -> "LogOp":
            if node_id in self._evidence.hurt:
                held = self.held.get((node_id, host.shard_id), 0)
                self._judge(log_checks.check_repaired, host, held, node_id)
            return clear()

        if host.table is not None:
            host.clients.committed = told  # type: ignore[method-assign]
        host.log.truncate = was_cut  # type: ignore[method-assign]
        host.log.clear_damage = is_whole  # type: ignore[method-assign]
        self._listen_to_compaction(machine, host)
        listen_to_host(self._judge, machine, host, self._evidence.truth(host.shard_id))
        self.modes.listen(machine, host)

    def _judge_own_log(self, host: "SingleWriterPartition", node_id: int) -> None:
        """What a disk has lost or flipped is for the node to find: a read of the judge's would find it for the node."""
        if node_id not in self._evidence.hurt:
            self._judge(check_own_log, host, node_id)

    def _listen_to_compaction(self, machine: "Machine", host: "SingleWriterPartition") -> None:
        """Look at each segment that is about to take the place of others."""
        replace, truth = host.log.compacting.replace, self._evidence.truth(host.shard_id)

        def replaced(
            old: "list[Segment]", new: "SegmentSummary", files: "tuple[File, File]", clean_from: int
        ) -> "LogOp":
            data = files[0].durable() if isinstance(files[0], SimulatedFile) else b""
            self._judge(log_checks.check_compacted, truth, data, host, new, machine.node_id)
            self._world.tell("compacted", machine.node_id, host.shard_id, len(old), new.size_bytes)
            return replace(old, new, files, clean_from)

        host.log.compacting.replace = replaced  # type: ignore[method-assign]

    def _look_at_failed(self, machine: "Machine", host: "Partition") -> None:
        key = (machine.node_id, host.shard_id)
        if key in self._stopped:
            return
        self._stopped.add(key)
        error = host.state.failed
        self._world.tell("replica-stopped", machine.node_id, host.shard_id, str(error))
        own_fault = isinstance(error, InternalError) or not isinstance(error, AntiphonError)
        require(
            not own_fault,
            "no-crash",
            f"the replica on node {machine.node_id} stopped: {error}",
            host.shard_id,
        )

    def _look_at_commit(
        self, machine: "Machine", host: "SingleWriterPartition", seen: _Seen, settled: int
    ) -> None:
        shard_id, log = host.shard_id, host.log
        require(
            settled >= seen.settled,
            "watermark",
            f"on node {machine.node_id} {seen.settled} was settled, now {settled} is",
            shard_id,
        )
        seen.settled = settled
        # Where more is acknowledged than is settled, the smaller of both marks counts. It may end in an older term, before
        # an entry of the leader's own that a majority has.
        if (
            host.replica.role is Role.LEADER
            and seen.led_term == host.state.term
            and not host.mode.acknowledges_early
        ):
            require(
                log.terms.term_before(settled) == host.state.term,
                "older-term",
                f"node {machine.node_id} leads term {host.state.term} and commits up to {settled}, an entry "
                "of an older term",
                shard_id,
            )
        start = max(seen.checked, log.log_start)
        if settled <= start or log.log_end < settled:
            return  # being reset to a snapshot
        truth = self._evidence.truth(shard_id)
        if machine.node_id in self._evidence.hurt:
            start = max(
                start, min(truth.end, settled)
            )  # what is on its disk of the time before proves nothing
        seen.checked = settled
        for batch in self._batches(machine, host, start, settled):
            header = read_header(batch)
            # Of a compacted log one batch may stand for more than this process knows to be settled.
            seen.checked = max(settled, header.next_offset)
            is_new = header.base_offset >= start and truth.take(
                header, batch, f"node {machine.node_id}", host.state.term
            )
            if is_new and host.replica.role is Role.LEADER:  # others hear of it from one
                self.modes.committed(host, seen.members, truth.batches[-1])
        if host.table is not None:
            applied = host.table.state.applied_offset
            require(
                applied <= truth.end,
                "applied-committed",
                f"the store on node {machine.node_id} is at {applied}, committed is {truth.end}",
                shard_id,
            )

    def _batches(self, machine: "Machine", host: "Partition", at: int, end: int) -> Iterator[Buffer]:
        """Batches from `at` to `end`, from memory, or from what is durable of the file."""
        log = host.log
        while at < end:
            if log.is_in_memory(at):
                found: Sequence[Buffer] = log.read(at, READ_BYTES, end)
                if not found and log.config.compaction is not None:  # one batch may reach beyond the end
                    found = log.read(at, 1, log.log_end)
            else:
                one = self._evidence.durable_log(machine.node_id, host.shard_id).batch(machine.disk, at)
                found = [] if one is None else [one]
            require(
                found,
                "log-matching",
                f"node {machine.node_id} says that {end} is settled, and has no batch at {at}",
                host.shard_id,
            )
            yield from found
            at = read_header(found[-1]).next_offset

    def _look_at_leader(self, machine: "Machine", host: "SingleWriterPartition", seen: _Seen) -> None:
        other = self._leaders.setdefault((host.shard_id, host.state.term), machine.node_id)
        require(
            other == machine.node_id,
            "one-leader",
            f"nodes {other} and {machine.node_id} both lead term {host.state.term}",
            host.shard_id,
        )
        committed, log = self._evidence.truth(host.shard_id).before_term(host.state.term), host.log
        end = committed.offset
        require(
            log.log_end >= end and (log.log_start >= end or log.terms.holds(committed)),
            "leader-completeness",
            f"node {machine.node_id} leads term {host.state.term} with a log of {log.end}, committed before is {committed}",
            host.shard_id,
        )
        if host.state.is_serving:
            seen.ready_term = host.state.term
            self._world.tell("leader", machine.node_id, host.shard_id, host.state.term, log.log_end)
