"""What is measured. A new row is a line in `_all()`; a new kind of work is also a class in the clients."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from tests.peers.servers.peer import KAFKA, TABLE

SIZES: Final = {"100B": 100, "1KB": 1_000, "10KB": 10_000}
BATCHES: Final = {"16KB": 16_384, "131KB": 131_072, "1MB": 1_000_000}
PARTITIONS: Final = (1, 3, 48)
CODECS: Final = ("none", "zstd")
IN_FLIGHT: Final = (1, 64, 1_000)
SHARES: Final = (25, 50, 75)
READ_RECORDS: Final = {"100B": 2_000_000, "1KB": 300_000, "10KB": 30_000}
KEYS: Final = 10_000
SCANNED: Final = 1_000
PUT_BYTES: Final = 64


@dataclass(frozen=True)
class Row:
    """One line of the result.

    Attributes:
        name: how `--rows` calls it.
        protocol: what its clients speak.
        job: what a client is told; `servers`, `topic`, `number`, `seconds` and `warm_s` are added.
        clients: how many processes do the job at the same time.
        unit: what is counted.
        filled: records that the topic has before.
        cold: whether the servers' files are dropped from the page cache before.
        share: percent of the rate that the same job reaches in a closed loop, as an open loop; 0: a closed loop.
        usual: whether a run without `--rows` measures it.
    """

    name: str
    protocol: str
    job: dict[str, Any] = field(hash=False)
    clients: int = 1
    unit: str = "records"
    filled: int = 0
    cold: bool = False
    share: int = 0
    usual: bool = True


def _produce(size: str, batch: str, partitions: int, codec: str = "none", **beside: Any) -> dict[str, Any]:
    job = {
        "work": "produce",
        "value_bytes": SIZES[size],
        "batch_bytes": BATCHES[batch],
        "partitions": partitions,
        "codec": codec,
        "linger_ms": 20,
    }
    return job | beside


def _produces() -> Iterator[Row]:
    for size in SIZES:
        for batch in BATCHES:
            for partitions in PARTITIONS:
                for codec in CODECS:
                    name = f"produce/{size}/{batch}/{partitions}p/{codec}"
                    usual = partitions == 3 and codec == "none" and size != "10KB"
                    yield Row(name, KAFKA, _produce(size, batch, partitions, codec), usual=usual)
    for size in SIZES:
        job = _produce(size, "16KB", 1, work="one", in_flight=1, linger_ms=0)
        yield Row(f"produce-one/{size}", KAFKA, job, usual=size == "100B")
    for size in SIZES:
        name = f"produce-five/{size}/131KB/3p/none"
        yield Row(name, KAFKA, _produce(size, "131KB", 3), clients=5, usual=size == "1KB")
    for share in SHARES:
        job = _produce("1KB", "131KB", 3, linger_ms=5)
        yield Row(f"produce-latency/1KB/{share}", KAFKA, job, share=share)


def _consumes() -> Iterator[Row]:
    for size, records in READ_RECORDS.items():
        for partitions in (1, 48):
            job = _produce(size, "131KB", partitions, work="consume", records=records)
            usual = size != "10KB"
            yield Row(
                f"consume-memory/{size}/{partitions}p",
                KAFKA,
                job,
                filled=records,
                usual=usual and partitions == 1,
            )
            yield Row(
                f"consume-disk/{size}/{partitions}p",
                KAFKA,
                job | {"once": True},
                filled=records,
                cold=True,
                usual=size == "1KB" and partitions == 1,
            )
        job = _produce(size, "131KB", 3, work="consume", records=records)
        yield Row(f"consume-ten/{size}/3p", KAFKA, job, clients=10, filled=records, usual=size == "1KB")
    for clients in (1, 10):
        job = _produce("100B", "16KB", 3, work="commit")
        yield Row(
            f"commit-offsets/{clients}", KAFKA, job, clients=clients, unit="commits", usual=clients == 1
        )


def _transactions() -> Iterator[Row]:
    for records in (1, 100):
        for clients in (1, 10):
            job = _produce("1KB", "16KB", 3, work="transact", records=records, linger_ms=0)
            usual = clients == 1
            yield Row(
                f"transact/{records}x1KB/{clients}",
                KAFKA,
                job,
                clients=clients,
                unit="transactions",
                usual=usual,
            )


def _rebalances() -> Iterator[Row]:
    """Of a group with as many members as partitions, one of whom goes and comes back."""
    for members in (10, 100):
        for protocol, assignor in (("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "")):
            job = {
                "work": "rebalance",
                "partitions": members,
                "members": members,
                "group_protocol": protocol,
                "assignor": assignor,
            }
            name = f"rebalance/{members}/{assignor or protocol}"
            usual = members == 100 and assignor != "range"
            yield Row(name, KAFKA, job, unit="rebalances", usual=usual)


def _tables() -> Iterator[Row]:
    base: dict[str, Any] = {"value_bytes": PUT_BYTES, "keys": KEYS, "scanned": SCANNED}
    for work in ("put", "get", "mixed"):
        for in_flight in IN_FLIGHT:
            usual = work != "mixed" or in_flight == 64
            job = base | {"work": work, "in_flight": in_flight}
            yield Row(f"{work}/{in_flight}", TABLE, job, unit="operations", usual=usual)
    yield Row("scan/1000", TABLE, base | {"work": "scan", "in_flight": 1}, unit="scans")
    for share in SHARES:
        job = base | {"work": "put", "in_flight": 1_000}
        yield Row(f"put-latency/{share}", TABLE, job, unit="operations", share=share)


def _all() -> Iterator[Row]:
    yield from _produces()
    yield from _consumes()
    yield from _transactions()
    yield from _rebalances()
    yield from _tables()


ROWS: Final[dict[str, Row]] = {row.name: row for row in _all()}


def chosen(patterns: str | None) -> list[Row]:
    """The rows that a comma separated list of shell patterns names; without one the usual ones."""
    if patterns is None:
        return [row for row in ROWS.values() if row.usual]
    return [row for row in ROWS.values() if any(fnmatchcase(row.name, one) for one in patterns.split(","))]
