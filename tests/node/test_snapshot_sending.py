"""Sending a snapshot, with the node around it played by the test: whatever goes wrong, the send ends and is told."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from antiphon.errors import AntiphonError, CorruptBatchError, DamagedStoreError, UnavailableError
from antiphon.log.disk import write_whole
from antiphon.log.producer_state import ProducerState
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.requests import Done
from antiphon.node.peer_wire import SnapshotBegin, SnapshotChunk, SnapshotProgress
from antiphon.node.snapshots import Snapshots
from antiphon.records.entry_id import EntryId, TermIndex
from tests.coroutines import run_by
from tests.node.in_process import eventually
from tests.node.in_process import run as run_in_virtual_time

if TYPE_CHECKING:
    from antiphon.node.node import Node
    from antiphon.partition.services import SnapshotSource

SHARD, FOLLOWER = 7, 2


class Leader:
    """The leader of a table's shard whose log reaches from 10 to 100; and what its replica is told."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.shard_id, self.term = SHARD, 3
        self.terms = TermIndex(10, 1)
        self.terms.append(3, 100)
        self.log = SimpleNamespace(producers=ProducerState(), terms=self.terms)
        self.table = SimpleNamespace(state=self, stores=self)
        self.checked: list[str] = []
        self.damage: DamagedStoreError | None = None
        self.applied: list[int] = []  # of the checkpoints to come; the last one stays
        self.during_checkpoint: Callable[[], None] = lambda: None
        self.told: list[Any] = []

    @property
    def log_start(self) -> int:
        return self.terms.log_start

    def checkpoint(self, path: str) -> int:
        self.disk.makedirs(path)
        write_whole(self.disk, f"{path}/rows", b"x" * 1000)
        self.during_checkpoint()
        return self.applied.pop(0) if len(self.applied) > 1 else self.applied[0]

    def check(self, path: str) -> Iterator[int]:
        self.checked.append(path)
        yield 1
        if self.damage is not None:
            raise self.damage

    def stopped_by(self, error: DamagedStoreError) -> AntiphonError:
        self.told.append(("stopped", error))
        return UnavailableError("the replica has stopped")

    def members_at(self, _offset: int) -> None:
        return None

    def failed(self, to: int) -> None:
        self.told.append(("failed", to))

    def sent(self, to: int, at: EntryId) -> None:
        self.told.append(("sent", to, at))


class Around:
    """The node, and the follower at the other end of its link."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.loop = asyncio.get_running_loop()
        self.config = SimpleNamespace(timings=SimpleNamespace(reconnect_max=1), dir="/node")
        self.begun: list[EntryId] = []

    def now_s(self) -> float:
        return self.loop.time()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(work)

    def link(self, _to: int) -> "Around":
        return self

    async def ask(self, body: Any, _timeout_s: float, _payload: Any = None) -> Any:
        if isinstance(body, SnapshotBegin):
            self.begun.append(body.at)
            return SnapshotProgress(tuple(0 for _ in body.files))
        return Done()


async def send(leader: Leader, around: Around) -> None:
    """Ask for a send and wait until the replica was told how it ended."""
    snapshots = Snapshots(cast("Node", around), "/node/snapshots")
    for _ in range(2):  # the second one shows that nothing of the first stands in its way
        leader.told.clear()
        snapshots.send(cast("SnapshotSource", leader), FOLLOWER)
        await eventually(lambda: bool(leader.told))


def _run(test: Callable[[Leader, Around], Coroutine[Any, Any, None]]) -> None:
    async def start() -> None:
        disk = SimulatedDisk(Random(0))
        await test(Leader(disk), Around(disk))

    run_in_virtual_time(start())


sent_in_virtual_time = run_by(_run, given=2)


@sent_in_virtual_time
async def test_a_copy_with_damage_is_not_sent_and_ends_the_replica(leader: Leader, around: Around) -> None:
    """What has decayed unseen in the leader's store must not become the follower's."""
    leader.applied = [40]
    leader.damage = DamagedStoreError("a block is damaged", path="rows", first_key="", last_key=None)
    await send(leader, around)
    await eventually(lambda: ("failed", FOLLOWER) in leader.told)
    assert leader.told == [("stopped", leader.damage), ("failed", FOLLOWER)]
    assert around.begun == []
    assert leader.checked
    leader.damage = None
    await send(leader, around)
    assert leader.told == [("sent", FOLLOWER, EntryId(3, 40))]


@sent_in_virtual_time
async def test_a_log_that_was_trimmed_during_the_checkpoint_gives_a_newer_position(
    leader: Leader, around: Around
) -> None:
    leader.applied = [40, 60]
    leader.during_checkpoint = lambda: leader.terms.trim(50) if leader.log_start < 50 else None
    await send(leader, around)
    assert leader.told == [("sent", FOLLOWER, EntryId(3, 60))]
    assert around.begun == [EntryId(3, 60)] * 2


@sent_in_virtual_time
async def test_a_log_that_is_always_trimmed_faster_fails_the_send(leader: Leader, around: Around) -> None:
    leader.applied = [40]
    leader.during_checkpoint = lambda: leader.terms.trim(50) if leader.log_start < 50 else None
    await send(leader, around)
    assert leader.told == [("failed", FOLLOWER)]


@sent_in_virtual_time
async def test_a_log_that_was_cut_during_the_checkpoint_fails_the_send(
    leader: Leader, around: Around
) -> None:
    leader.applied = [90]
    leader.during_checkpoint = lambda: leader.terms.truncate(80)
    await send(leader, around)
    assert leader.told == [("failed", FOLLOWER)]


@sent_in_virtual_time
async def test_a_leader_that_is_deposed_during_the_checkpoint_offers_nothing_in_the_next_term(
    leader: Leader, around: Around
) -> None:
    leader.applied = [40]

    def depose() -> None:
        leader.term += 1

    leader.during_checkpoint = depose
    snapshots = Snapshots(cast("Node", around), "/node/snapshots")
    snapshots.send(cast("SnapshotSource", leader), FOLLOWER)
    await eventually(lambda: bool(leader.told))
    assert leader.told == [("failed", FOLLOWER)]
    assert around.begun == []


@sent_in_virtual_time
async def test_whatever_goes_wrong_ends_the_send_and_is_told(leader: Leader, around: Around) -> None:
    for error in (ValueError("no such thing"), OSError("no disk"), UnavailableError("no store")):

        def fail(error: Exception = error) -> None:
            raise error

        leader.applied, leader.during_checkpoint = [40], fail
        await send(leader, around)
        assert leader.told == [("failed", FOLLOWER)]


@sent_in_virtual_time
async def test_a_chunk_that_cannot_be_sent_fails_the_send(leader: Leader, around: Around) -> None:
    ask = around.ask

    async def failing(body: Any, _timeout_s: float, _payload: Any = None) -> Any:
        if isinstance(body, SnapshotChunk):
            raise RuntimeError("a bug")
        return await ask(body, _timeout_s, _payload)

    around.ask = failing  # type: ignore[method-assign]
    leader.applied = [40]
    await send(leader, around)
    assert leader.told == [("failed", FOLLOWER)]


class LateThreads:
    """The loop, but for what is done in a thread and not waited for: that is done when the test says."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.time, self.create_task = loop.time, loop.create_task
        self.late: list[Callable[[], Any]] = []

    def run_in_executor(self, _executor: None, function: Callable[..., Any], *arguments: Any) -> None:
        self.late.append(partial(function, *arguments))

    def catch_up(self) -> None:
        while self.late:
            self.late.pop()()


@sent_in_virtual_time
async def test_a_copy_that_is_removed_late_does_not_take_the_next_one_with_it(
    leader: Leader, around: Around
) -> None:
    threads = LateThreads(around.loop)
    around.loop = cast("asyncio.AbstractEventLoop", threads)
    leader.applied, leader.during_checkpoint = [40], threads.catch_up
    await send(leader, around)
    assert leader.told == [("sent", FOLLOWER, EntryId(3, 40))]
    threads.catch_up()
    assert leader.disk.listdir("/node/snapshots") == []


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "gone"), CorruptBatchError("not what it was")]
)
@sent_in_virtual_time
async def test_a_copy_that_cannot_be_sent_is_made_anew(
    leader: Leader, around: Around, error: Exception
) -> None:
    ask, asked = around.ask, list[str]()

    async def failing_once(body: Any, _timeout_s: float, _payload: Any = None) -> Any:
        if isinstance(body, SnapshotBegin):
            asked.append(body.snapshot_id)
        elif len(asked) == 1:
            raise error
        return await ask(body, _timeout_s, _payload)

    around.ask = failing_once  # type: ignore[method-assign]
    leader.applied = [40]
    snapshots = Snapshots(cast("Node", around), "/node/snapshots")
    for wanted in (("failed", FOLLOWER), ("sent", FOLLOWER, EntryId(3, 40))):
        leader.told.clear()
        snapshots.send(cast("SnapshotSource", leader), FOLLOWER)
        await eventually(lambda: bool(leader.told))
        assert leader.told == [wanted]
    assert len(set(asked)) == 2
