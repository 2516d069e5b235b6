"""One row on one running cluster."""

import json
import os
import select
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hdrh.histogram import HdrHistogram

from tests.peers.clients.process import DIGITS, LONGEST_US
from tests.peers.rows import Row
from tests.peers.servers.peer import KAFKA, Peer, Running, UnavailableError
from tests.peers.usage import Usage, drop_page_cache, shares

ROOT: Final = Path(__file__).parent.parent.parent
WARM_S: Final = 1.0
PATIENCE_S: Final = 120.0
REMOVE_S: Final = 20.0
QUIET: Final = 2  # librdkafka's log level: what is critical
PERCENTILES: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}

Figures = dict[str, Any]


@dataclass
class Client:
    """One client process, from its job to its result."""

    command: tuple[str, ...]
    job: dict[str, Any]
    said: str = ""
    _process: "subprocess.Popen[str]" = field(init=False)

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(
            [*self.command, json.dumps(self.job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def line(self, seconds: float) -> str:
        """The next line that it prints. Raises UnavailableError when there is none."""
        out, err = self._process.stdout, self._process.stderr
        if out is None or err is None:
            raise UnavailableError("the client has no pipes")
        readable, _, _ = select.select([out], [], [], seconds)
        line = out.readline().strip() if readable else ""
        if not line:
            self._process.kill()
            words = err.read().strip().splitlines()[-1:]
            raise UnavailableError(f"the client failed: {''.join(words)[:300] or 'no answer in time'}")
        return line

    def go(self) -> None:
        """Let it begin."""
        if self._process.stdin is not None:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class Measure:
    """Measures rows on a running cluster, one after the other, each with a topic of its own."""

    def __init__(self, peer: Peer, running: Running, seconds: float) -> None:
        self._peer = peer
        self._running = running
        self._seconds = seconds
        self._capacities: dict[str, float] = {}
        self._number = 0
        self._where = Path(tempfile.gettempdir())

    def row(self, row: Row) -> Figures:
        """Figures of one row. Raises UnavailableError when the peer or its client fails."""
        topic = self._topic(row)
        try:
            if row.filled:
                self._fill(row, topic)
            job = row.job
            if row.share:
                rate = self._capacity(row, topic) * row.share / 100
                job = job | {"rate": rate, "work": "open" if row.protocol == KAFKA else job["work"]}
            if row.cold:
                drop_page_cache()
            return self._work(row.protocol, job, topic, row.clients)
        finally:
            self._remove(row, topic)

    # -- topics -------------------------------------------------------------------------------------------------

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self._running.addresses[KAFKA], "log_level": QUIET})

    def _topic(self, row: Row) -> str:
        if row.protocol != KAFKA:
            return "bench"  # its client creates and fills it when it is not there
        from confluent_kafka.admin import NewTopic

        self._number += 1
        name = f"bench-{self._number}"
        admin = self._admin()
        made = NewTopic(name, row.job["partitions"], 3)
        admin.create_topics([made])[name].result(60.0)
        deadline = time.monotonic() + PATIENCE_S
        while not self._has_leaders(admin, name, row.job["partitions"]):
            if time.monotonic() > deadline:
                raise UnavailableError(f"topic {name} has no leaders after {PATIENCE_S:.0f} s")
            time.sleep(0.1)
        return name

    def _has_leaders(self, admin: Any, name: str, partitions: int) -> bool:
        found = admin.list_topics(name, timeout=10.0).topics[name].partitions.values()
        return len(found) == partitions and all(one.leader >= 0 for one in found)

    def _remove(self, row: Row, topic: str) -> None:
        if row.protocol == KAFKA:
            from confluent_kafka import KafkaException

            # Where it cannot be deleted it goes with the cluster's directory, and the row's own failure counts.
            with suppress(KafkaException, TimeoutError):
                self._admin().delete_topics([topic])[topic].result(REMOVE_S)

    def _fill(self, row: Row, topic: str) -> None:
        job = row.job | {"work": "fill", "records": row.filled, "warm_s": 0.0}
        found = self._work(row.protocol, job, topic, 1)
        if found["count"] != row.filled - 1:
            raise UnavailableError(f"{topic} took {found['count']} of {row.filled} records")

    def _capacity(self, row: Row, topic: str) -> float:
        """What the job reaches in a closed loop; measured once per cluster."""
        kind = json.dumps(row.job, sort_keys=True)
        if kind not in self._capacities:
            self._capacities[kind] = self._work(row.protocol, row.job, topic, row.clients)["rate"]
        return self._capacities[kind]

    # -- work ---------------------------------------------------------------------------------------------------

    def _work(self, protocol: str, job: dict[str, Any], topic: str, clients: int) -> Figures:
        shared = {
            "warm_s": 0.0 if job.get("once") else WARM_S,
            **job,
            "servers": self._running.addresses[protocol],
            "topic": topic,
            "seconds": self._seconds,
        }
        working: list[Client] = []
        try:
            command = self._peer.clients[protocol]
            working += (Client(command, shared | {"number": number}) for number in range(clients))
            for one in working:
                one.line(PATIENCE_S)
            before = self._usage(working)
            for one in working:
                one.go()
            found = [json.loads(one.line(PATIENCE_S + self._seconds)) for one in working]
            servers, mine = (late - early for late, early in zip(self._usage(working), before, strict=True))
        finally:
            for one in working:
                one.close()
        asked = {"asked_rate": round(job["rate"])} if "rate" in job else {}
        return figures(found, servers) | {"shares": shares(servers, mine)} | asked

    def _usage(self, clients: list[Client]) -> tuple[Usage, Usage]:
        """Of the servers, and of the clients."""
        return Usage.of(self._running.pids, self._where), Usage.of([one.pid for one in clients], self._where)


def figures(found: list[dict[str, Any]], used: Usage) -> Figures:
    """The clients' results and what the servers used for them, as one."""
    count = sum(one["count"] for one in found)
    merged = HdrHistogram(1, LONGEST_US, DIGITS)
    for one in found:
        if "hdr" in one:
            merged.add(HdrHistogram.decode(one["hdr"]))
    row: Figures = {
        "count": count,
        "failed": sum(one["failed"] for one in found),
        "rate": sum(one["count"] / one["seconds"] for one in found),
    }
    if count:
        row["cpu_s_per_1000"] = used.cpu_s / count * 1000
        row["written_bytes_per_1000"] = used.written_bytes / count * 1000
        row["flushes_per_1000"] = used.flushes / count * 1000 if used.flushes >= 0 else None
    if merged.get_total_count():
        row |= {name: merged.get_value_at_percentile(at) / 1000 for name, at in PERCENTILES.items()}
        row["hdr"] = merged.encode().decode()
    return row
