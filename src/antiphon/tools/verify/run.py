"""One run of `antiphon verify`: start a cluster, load and hurt it, let it settle, read it, stop it, judge."""

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from antiphon.errors import AntiphonError

T = TypeVar("T")

NODES: Final = 3


def run(
    seconds: float, faults: list[str], seed: int, *, say: Any, keep: bool = False, profile: str = "oxia"
) -> dict[str, Any]:
    """One whole run; returns what `--json` prints. `say(line)` hears what happens."""
    directory = Path(tempfile.mkdtemp(prefix="antiphon-verify-"))
    passed = False
    try:
        found = Verification(directory, seconds, faults, seed, say, profile).run()
        passed = bool(found["passed"])
    finally:
        if passed and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"kept: {directory}")
    return {**found, "directory": None if passed and not keep else str(directory)}


class Verification:
    """One run: start, load and hurt, settle, read, stop, judge."""

    def __init__(
        self, directory: Path, seconds: float, faults: list[str], seed: int, say: Any, profile: str
    ) -> None:
        from antiphon.tools.verify.faults import plan
        from antiphon.tools.verify.history import History

        self._directory = directory
        self._seconds = seconds
        self._faults = faults
        self._profile = profile
        self._seed = seed
        self._say = say
        self._rng = random.Random(f"targets {seed}")
        self._plan = plan(faults, seconds, random.Random(f"faults {seed}"))
        self._history = History()
        self._began = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Everything; leaves no process behind."""
        from antiphon.tools.local_cluster import LocalCluster

        self._say(f"seed {self._seed}: {self._seconds:.0f} s, {len(self._plan)} faults planned")
        for fault in self._plan:
            self._say(f"  {fault.words()}")
        with _loop() as loop, LocalCluster.start(NODES, self._directory, hurtable=True) as cluster:
            dirs = {node.id: node.dir for node in cluster.nodes.values()}
            done, problems, copies = self._load_and_read(loop, cluster)
        # Stopped cleanly: from here on the replicas' files are all there is.
        checks = self._judge(dirs, copies, problems)
        return {
            "passed": not any(check["problems"] for check in checks),
            "seed": self._seed,
            "profile": self._profile,
            "seconds": self._seconds,
            "elapsed_s": round(time.monotonic() - self._began, 1),
            "faults": done,
            "operations": self._history.counts(),
            "checks": checks,
        }

    def _load_and_read(self, loop: asyncio.AbstractEventLoop, cluster: Any) -> tuple[Any, list[str], Any]:
        from antiphon.tools.verify import kafka as verify_kafka
        from antiphon.tools.verify.faults import Hands
        from antiphon.tools.verify.load import NativeLoad

        rng = random.Random(f"load {self._seed}")
        native = NativeLoad(cluster.native, self._history, rng, self._profile)
        _on(loop, native.create())
        kafka = (
            verify_kafka.KafkaLoad(cluster.kafka, self._history, rng) if verify_kafka.available() else None
        )
        running = asyncio.run_coroutine_threadsafe(native.run(), loop)
        if kafka is not None:
            kafka.start()
        hands = Hands(cluster, lambda role: self._find(loop, cluster, role), self._at)
        try:
            hands.carry_out(self._plan, self._seconds)
        finally:
            loop.call_soon_threadsafe(native.stop)
        self._at("the load ends")
        running.result(120)
        if kafka is not None:
            kafka.stop()
        problems, copies = _on(loop, self._read(cluster.native))
        if kafka is not None:
            from antiphon.tools.verify.load import KAFKA_TOPIC

            kafka.drain(
                {
                    copy.index: copy.records[-1].offset + 1
                    for copy in copies
                    if copy.topic == KAFKA_TOPIC and copy.records
                }
            )
            # The drain has committed offsets, which are records too.
            problems, copies = _on(loop, self._read(cluster.native))
        _on(loop, native.finish_readers())
        return hands.done, problems, copies

    async def _read(self, servers: str) -> tuple[list[str], Any]:
        from antiphon import aio
        from antiphon.tools.verify.logs import read_shards, wait_settled

        problems = []
        async with aio.connect(servers) as db:
            try:
                await wait_settled(db)
            except AntiphonError as error:
                problems.append(error.message)
            return problems, await read_shards(db)

    def _find(self, loop: asyncio.AbstractEventLoop, cluster: Any, role: str) -> int | None:
        """Which node is it now, as far as a node says that answers within a moment?"""
        from antiphon import aio
        from antiphon.tools.verify.load import KAFKA_TOPIC, TABLE, TOPIC

        if role == "any":
            nodes: list[int] = sorted(cluster.nodes)
            return self._rng.choice(nodes)
        name = self._rng.choice((TOPIC, KAFKA_TOPIC, TABLE))

        async def ask() -> int | None:
            async with asyncio.timeout(1.0), aio.connect(cluster.native, connect_timeout_s=1.0) as db:
                meta = await db.metadata()
            if role == "coordinator":
                controller: int = meta.controller
                return controller
            leaders: list[int] = [topic.shards[0].leader for topic in meta.topics if topic.name == name]
            return leaders[0] if leaders else None

        try:
            return _on(loop, ask())
        except (AntiphonError, TimeoutError):
            return None

    def _judge(self, dirs: dict[int, Path], copies: Any, unsettled: list[str]) -> list[dict[str, Any]]:
        from antiphon.tools.verify.checks import of_topic, topic_checks
        from antiphon.tools.verify.load import TABLE
        from antiphon.tools.verify.logs import compare_replicas, compare_stores
        from antiphon.tools.verify.tables import judge

        problems, cut_off = judge(self._history.table, of_topic(copies, TABLE).values())
        note = f"unknown for {cut_off} keys: the search was cut off" if cut_off else ""
        replicas = "every replica's files are what its leader served, byte for byte"
        stores = "every replica's table store is what its log folds into"
        found = [
            ("the replicas settle once every node is back", unsettled, ""),
            *((what, list(check()), "") for what, check in topic_checks(self._history, copies)),
            ("every key of the table is linearizable", problems, note),
            (replicas, compare_replicas(dirs, copies), ""),
            (stores, compare_stores(dirs, copies, TABLE), ""),
        ]
        return [dict(zip(("what", "problems", "note"), one, strict=True)) for one in found]

    def _at(self, line: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.2f} s  {line}")


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="verify-load", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()
