"""Replicas of one shard without nodes, loop or threads: real hosts, logs and protocol, driven step by step."""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, cast

from antiphon.errors import AntiphonError
from antiphon.log.operations import LogOp
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.wal import Wal
from antiphon.node.metrics import NodeMetrics
from antiphon.node.partition_opener import commit_marker, term_start
from antiphon.node.raft_shards import members_entry
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.builder import build_batch
from antiphon.records.entry_id import TermIndex
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.messages import AnyMessage, Append
from antiphon.replication.raft import RaftReplica
from antiphon.replication.restored_state import RestoredState

SHARD = 7
TICKS_MAX = 1_000
Work = Callable[[], None]


class StepTurn:
    """A turn of the event loop that ends when the test says so."""

    def __init__(self) -> None:
        self.works: deque[Work] = deque()

    def for_shard(self, work: Work) -> None:
        """See `Turn`."""
        self.works.append(work)

    def end(self) -> bool:
        """Run what was asked for; False if there was nothing."""
        had_work = bool(self.works)
        while self.works:
            self.works.popleft()()
        return had_work


class StepWal(Wal):
    """A WAL whose worker writes when the test says so."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk)
        self.waiting: list[LogOp] = []
        self.groups: list[int] = []  # operations of each group

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def _hand_over(self, op: LogOp) -> None:
        self.waiting.append(op)

    def _report(self, error: Exception, message: str) -> None:
        raise AssertionError(message) from error

    def work(self) -> bool:
        """Write and sync one group; False if there was nothing."""
        ops, self.waiting = self.waiting, []
        if ops:
            self.groups.append(len(ops))
        self.deliver(self.round(ops, 0.0), False)
        return bool(ops)


class StepServices:
    """What a host needs of its node, for one host."""

    def __init__(self, node_id: int, shard: "Shard") -> None:
        self.node_id = node_id
        self.stirred: set[int] = set()
        self.producers_full = False
        self.turn = StepTurn()
        self.metrics = NodeMetrics()
        self.disk = SimulatedDisk(Random(node_id))
        self.wal = StepWal(self.disk)
        self._shard = shard

    def now_s(self) -> float:
        """No time passes."""
        return 0.0

    def send_message(self, to: int, message: AnyMessage) -> None:
        """Into the network."""
        self._shard.network.append((self.node_id, to, message))

    def is_congested(self, _to: int) -> bool:
        """Never."""
        return False

    def is_joining(self, _shard_id: int) -> bool:
        """Never."""
        return False

    def recovered_part(self, _shard_id: int) -> None:
        """None lost anything."""

    def is_closing(self, _shard_id: int) -> bool:
        """See PartitionServices."""
        return False

    def __getattr__(self, name: str) -> Any:
        """All else is news for the node, which is not here."""
        return lambda *_arguments, **_named: None


class Shard:
    """The replicas of one shard that vote; node 1 leads when this is made."""

    def __init__(self, count: int = 3, config: ReplicaConfig | None = None) -> None:
        self.network: deque[tuple[int, int, AnyMessage]] = deque()
        self.appends_sent = 0
        config = config or ReplicaConfig(commit_marker=True)
        nodes = tuple(range(1, count + 1))
        self.hosts = {node: self._host(node, nodes, config) for node in nodes}
        self.leader = self.hosts[1]
        for _ in range(TICKS_MAX):
            self.leader.driver.tick()
            self.settle()
            if self.leader.state.is_serving:
                break
        else:
            raise AssertionError(f"no leader: {self.leader.state.failed}")

    def _host(self, node: int, nodes: tuple[int, ...], config: ReplicaConfig) -> SingleWriterPartition:
        services = StepServices(node, self)
        log = ShardLog.open(services.disk, f"/shards/{SHARD}", clock_ms=lambda: 0)
        replica = RaftReplica(
            node_id=node,
            shard=SHARD,
            ensemble=nodes,
            restored=RestoredState(terms=TermIndex(), members=log.members.copy()),
            entries=EntryFactory(term_start, commit_marker, members_entry),
            config=config,
            election_timeout_ticks=lambda: 10,
            election=ElectionConfig(),
        )
        return SingleWriterPartition(cast("Any", services), SHARD, log, replica, None, 1_000_000)

    def services(self, node: int) -> StepServices:
        """Of one host."""
        return cast("StepServices", self.hosts[node].services)

    def settle(self) -> None:
        """Let everything happen that is under way: turns, disks, network, in this order, until all is quiet."""
        busy = True
        while busy:
            busy = False
            for node in self.hosts:
                busy |= self.services(node).turn.end()
                busy |= self.services(node).wal.work()
            messages, self.network = self.network, deque()
            for sender, to, message in messages:
                busy = True
                self.appends_sent += isinstance(message, Append) and bool(message.entries)
                self.hosts[to].receive(sender, message)

    def append(self, value: bytes, done: Callable[[Any], None]) -> None:
        """A client's append at the leader."""
        try:
            self.leader.clients.append(build_batch([(None, value, [], 1)]), None, 10.0, done)
        except AntiphonError as error:
            done(error)

    def logs(self) -> dict[int, list[bytes]]:
        """The batches of every replica."""
        return {
            node: [bytes(batch) for _, batch in host.log.reader.batches_from(0)]
            for node, host in self.hosts.items()
        }
