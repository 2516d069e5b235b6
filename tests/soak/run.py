"""A soak: a real three-node cluster under mixed load for a long time; does anything grow, is anything lost?

    python -m tests.soak.run [SECONDS] [--out FOLDER]

FOLDER gets `soak.json` (samples of every second, latencies, trends, what the judge found) and `soak.png`. Ends with 1
when the judge found something, a client got an error, or memory, descriptors, threads or latencies of the last two
thirds of the run grew by more than `tests.soak.figures.BOUNDS` allows.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from antiphon import aio
from antiphon.records.batch import iter_batches
from antiphon.records.decode import decode_records
from antiphon.tools.demo.replicas import identical
from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.verify.logs import wait_settled
from tests.soak import plot
from tests.soak.figures import JUDGED_FROM, Latencies, Sampler, as_rows, trends, window_of
from tests.soak.kafka_load import KafkaLoad
from tests.soak.ledger import Ledger, ShardJudge, judge_rows, parse
from tests.soak.load import BULK, KAFKA, LOG, OXIA, TABLE, TRIMMED, NativeLoad, Pace
from tests.soak.oxia_load import OxiaLoad
from tests.soak.rude import RudeClients
from tests.soak.visitors import Visitors, connections

SECONDS: Final = 3600.0
TOLD_EVERY_S: Final = 60.0
READ_BYTES: Final = 1024 * 1024
CLIENTS: Final = "clients"
# What a person waits for; the rest is told as well, and not judged.
JUDGED_KINDS: Final = (
    "native append", "put", "get", "scan", "bulk write", "kafka produce", "kafka consume", "page", "native visit",
    "oxia put", "oxia get", "oxia scan", "oxia visit",
)  # fmt: skip
WRITTEN: Final = (LOG, KAFKA, TRIMMED)


class Soak:
    """One run on a running cluster."""

    def __init__(self, cluster: LocalCluster, seconds: float, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._say = say
        self.ledger = Ledger()
        self.latencies = Latencies()
        self.shards: list[tuple[str, int, int]] = []
        self.leaders: list[dict[int, tuple[int, int]]] = []
        nodes = {f"node {node.id}": node.pid for node in cluster.nodes.values()}
        self.sampler = Sampler({**nodes, CLIENTS: os.getpid()})
        self.nodes = {name: self.sampler.series[name] for name in nodes}

    async def run(self) -> list[str]:
        """Load, then judge; returns what the judge found."""
        pace = Pace(self.ledger, self.latencies)
        native = NativeLoad(self._cluster.native, pace)
        await native.create()
        await self._note_leaders()
        shard_ids = {topic: shard_id for topic, index, shard_id in self.shards if index == 0}
        kafka = KafkaLoad(self._cluster.kafka, self.ledger, self.latencies)
        kafka.start()
        self.sampler.start()
        oxia = OxiaLoad(self._cluster.oxia, self._cluster.native, pace)
        parts = (native, oxia, Visitors(self._cluster, pace), RudeClients(self._cluster, shard_ids, pace))
        running = [asyncio.create_task(part.run()) for part in parts]
        await self._wait(running)
        self.sampler.stop()
        pace.stopping.set()
        self._say("the load ends")
        await asyncio.gather(*running)
        await asyncio.to_thread(kafka.stop)
        await self._note_leaders()
        self._say("judging")
        return self.ledger.problems + kafka.missing() + await self._judge()

    async def _wait(self, running: "list[asyncio.Task[None]]") -> None:
        """Until the time is over, with a line now and then; a load that ends by itself has failed."""
        began_s = time.monotonic()
        while (left_s := began_s + self._seconds - time.monotonic()) > 0:
            done, _ = await asyncio.wait(
                running, timeout=min(left_s, TOLD_EVERY_S), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            self._tell(time.monotonic() - began_s)

    def _tell(self, at_s: float) -> None:
        nodes = ", ".join(
            f"{name}: {one.resident_mib[-1]:.0f} MiB, {one.descriptors[-1]} descriptors"
            for name, one in self.nodes.items()
            if one.at_s
        )
        count, errors = sum(self.ledger.operations.values()), sum(self.ledger.errors.values())
        self._say(f"{at_s:6.0f} s: {count:,} requests, {errors} errors; {nodes}")

    async def _note_leaders(self) -> None:
        async with aio.connect(self._cluster.native) as db:
            topics = [topic for topic in (await db.metadata()).topics if topic.name.startswith("soak-")]
            self.shards = [
                (topic.name, shard.index, shard.shard_id) for topic in topics for shard in topic.shards
            ]
            self.leaders.append(
                {shard.shard_id: (shard.leader, shard.term) for t in topics for shard in t.shards}
            )

    # -- the judge ----------------------------------------------------------------------------------------------

    async def _judge(self) -> list[str]:
        problems = []
        async with aio.connect(self._cluster.native) as db:
            await wait_settled(db)
            for topic, index, shard_id in self.shards:
                if topic in WRITTEN:
                    problems += await self._judge_shard(db, topic, index, shard_id)
            found = {}
            for table in (TABLE, BULK, OXIA):
                async for row in db.table(table).scan():
                    found[row.key] = parse(row.value)[1]
        return problems + judge_rows(self.ledger, found)

    async def _judge_shard(self, db: Any, topic: str, index: int, shard_id: int) -> list[str]:
        ends = await db.list_offset(shard_id, -1)
        at = ends.log_start
        judge = ShardJudge(f"{topic}/{index}", self.ledger.logs[topic, index], at)
        problems = []
        while at < ends.high_watermark:
            before = at
            _, payload = await db.fetch(shard_id, at, max_bytes=READ_BYTES)
            for header, batch in iter_batches(payload):
                if header.next_offset <= at:
                    continue
                if header.base_offset != at and before != at:
                    problems.append(f"{topic}/{index}: a gap between {at} and {header.base_offset}")
                at = header.next_offset
                for record in () if header.is_control else decode_records(bytes(batch)):
                    judge.take(record.offset, record.value)
            if at == before:
                problems.append(f"{topic}/{index}: nothing to read at {at} of {ends.high_watermark}")
                break
        return problems + judge.end()

    # -- what is told -------------------------------------------------------------------------------------------

    def result(self, problems: list[str]) -> dict[str, Any]:
        """What goes into `soak.json`."""
        ledger, latencies = self.ledger, self.latencies
        kinds = [kind for kind in JUDGED_KINDS if len(latencies.took_s[kind])]
        found = trends(self.nodes, latencies, kinds, self._seconds)
        window_s = window_of(self._seconds)
        operations = dict(ledger.operations)
        return {
            "passed": not problems and not ledger.errors and all(one.fine for one in found),
            "steady": all(one.fine for one in found),
            "problems": problems,
            "errors": dict(ledger.errors),
            "error_texts": ledger.error_texts,
            "seconds": self._seconds,
            "requests": sum(operations.values()),
            "connections": connections(operations),
            "operations": operations,
            "elections": sum(self.leaders[0].get(shard) != at for shard, at in self.leaders[-1].items()),
            "machine": {
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "load": self.sampler.load,
            },
            "judged_from_s": round(self._seconds * JUDGED_FROM, 1),
            "window_s": window_s,
            "trends": as_rows(found),
            "latencies": {kind: latencies.windows(kind, window_s) for kind in kinds},
            "each_second": {kind: latencies.windows(kind, 1.0) for kind in kinds},
            "nodes": {name: vars(one) for name, one in self.nodes.items()},
            "clients": vars(self.sampler.series[CLIENTS]),
        }


def soak(seconds: float, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """A whole run with a cluster of its own; writes `soak.json` and `soak.png` to `out`."""
    with LocalCluster.start(3) as cluster:
        one = Soak(cluster, seconds, say)
        problems = asyncio.run(one.run())
        dirs = [node.dir for node in cluster.nodes.values()]
        kept = [shard for shard in one.shards if shard[0] in {LOG, KAFKA, TABLE, OXIA}]
        proof = identical(dirs, kept)
        if not proof.holds:
            problems.append(f"{proof.claim}: {proof.found}")
    result = one.result(problems)
    out.mkdir(parents=True, exist_ok=True)
    (out / "soak.json").write_text(json.dumps(result) + "\n")
    plot.draw(out / "soak.png", result)
    return result


def tell(result: dict[str, Any], say: Callable[[str], None]) -> None:
    """The outcome for a person."""
    for one in result["trends"]:
        verdict = "" if one["fine"] else "   GROWS"
        say(
            f"{one['what']:>16} {one['figure']:<13} median {one['median']:10.2f}   "
            f"growth {one['growth']:9.2f}   an hour {one['per_hour']:9.2f}{verdict}"
        )
    for what, count in result["errors"].items():
        say(f"error: {what} ({count} times)")
    for problem in result["problems"]:
        say(f"PROBLEM: {problem}")
    say(
        f"{result['requests']:,} requests, {result['connections']:,} connections that came and went, "
        f"{result['elections']} shards with another leader at the end: {'passed' if result['passed'] else 'FAILED'}"
    )


def main() -> None:
    """Entry point of `make soak`."""
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "seconds", nargs="?", type=float, default=SECONDS, help="how long to load the cluster"
    )
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder for soak.json and soak.png")
    given = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    result = soak(given.seconds, given.out, say)
    tell(result, say)
    say(f"{given.out / 'soak.json'}, {given.out / 'soak.png'}")
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    main()
