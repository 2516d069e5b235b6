"""What a reader has before a page begins: its pieces of code speak of topics, rows and clients that their program has made.

Whole programs on a page need none. A page leaves nothing behind for the next one: what it made goes with it.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import antiphon
from antiphon.model.metadata import Kind
from antiphon.tools.local_cluster import LocalCluster
from tests.pages.blocks import Block, Reader

Names = dict[str, Any]
RECORDS: Final = 120
ROWS: Final = 1300  # in each of two shards there are more offsets than the pages name


@contextlib.contextmanager
def scene(page: str, cluster: LocalCluster, folder: Path, **names: Any) -> Iterator[Reader]:
    """A reader of the page, for whom all is there that it takes for granted. `names`: what its code has by then."""
    with antiphon.connect(cluster.native) as db:
        before = {topic.name for topic in db.metadata().topics}
        given: Names = {**names, "db": db, "antiphon": antiphon, "servers": cluster.native}
        try:
            with Reader(cluster, folder) as reader:
                for name in FOLDERS.get(page, ()):
                    (folder / name).mkdir()
                if page in BEFORE:
                    BEFORE[page](db, given)
                    reader.names.update(given)
                yield reader
                for language, text in AFTER.get(page, ()):
                    reader.follow(Block(f"after {page}", 0, language, text, None))
        finally:
            _tidy(cluster, before)


def _tidy(cluster: LocalCluster, before: set[str]) -> None:
    with antiphon.connect(cluster.native) as db:
        for topic in db.metadata().topics:
            if topic.name not in before and not topic.internal:
                delete = db.delete_table if topic.kind == Kind.TABLE else db.delete_topic
                delete(topic.name)


def _flights(db: antiphon.Client, _: Names) -> None:
    db.create_topic("flights").append_batch([(b"N14228", b'{"air_time": 227}')] * RECORDS, shard=0)


def _spark(db: antiphon.Client, names: Names) -> None:
    _flights(db, names)
    db.create_table("last-flights", shards=1)


def _aircraft(db: antiphon.Client, names: Names) -> None:
    rows = {f"N{number}": b'{"seats": 150}' for number in range(ROWS)}
    names["aircraft"] = aircraft = db.create_table("aircraft", shards=1)
    aircraft.put_many({"N14228": b'{"seats": 149}', **rows})


def _both(db: antiphon.Client, names: Names) -> None:
    _flights(db, names)
    _aircraft(db, names)


def _conditional(db: antiphon.Client, names: Names) -> None:
    names["topic"] = db.create_topic("conditional")
    db.create_topic("seats")


def _jobs(db: antiphon.Client, names: Names) -> None:
    _both(db, names)
    names["frame"] = names["spark"].createDataFrame(
        [("N1", "A319", 140)], "tailnum string, model string, seats int"
    )


def _kafka(db: antiphon.Client, names: Names) -> None:
    from confluent_kafka import Producer

    db.create_topic("jobs").append(b"work")
    db.create_topic("game", config={"expected.offset.header": "true"})
    names["producer"] = Producer({"bootstrap.servers": names["kafka"]})
    names["end"] = db.topic("game").offsets(0)[1]
    names["outcomes"] = outcomes = []
    names["outcome"] = lambda error, _: outcomes.append(error)


def _multi_writer(_: antiphon.Client, names: Names) -> None:
    from tests.table.test_merge import samples

    names["samples"] = samples()


def _carts(db: antiphon.Client, _: Names) -> None:
    db.create_table("carts", config={"writers": "multi"}).put("c-1", b"tea")


def _recipes(db: antiphon.Client, names: Names) -> None:
    names["table"] = db.create_table("locks", shards=1)
    names["report"] = b"all is well"
    names["store_elsewhere"] = lambda report, token: None


def _tables(db: antiphon.Client, names: Names) -> None:
    names["table"] = table = db.create_table("people", shards=1)
    for name in ("alice", "bob"):
        table.put(name, b"100")
        names[name] = table.get(name)
    db.create_table("prices")
    names["aircraft"] = aircraft = db.create_table("aircraft", shards=2)
    aircraft.put_many({f"N{number}": b"" for number in range(2 * ROWS)})


def _transactions(db: antiphon.Client, names: Names) -> None:
    for name in ("orders", "shipped", "invoices"):
        db.create_topic(name)
    db.topic("orders").append_batch([b"a cup"] * 14, shard=0)
    for table, key, value in (
        ("stock", "cup", b"10"),
        ("accounts", "alice", b"100"),
        ("holds", "x", b""),
        ("limits", "alice", b"1000"),
    ):
        names["version"] = db.create_table(table).put(key, value).id


BEFORE: Final[dict[str, Callable[[antiphon.Client, Names], None]]] = {
    "docs/api.md": _both,
    "docs/conditional.md": _conditional,
    "docs/dashboard.md": _flights,
    "docs/jobs.md": _jobs,
    "docs/kafka.md": _kafka,
    "docs/lake.md": _both,
    "docs/multi-writer.md": _multi_writer,
    "docs/operations.md": _carts,
    "docs/recipes.md": _recipes,
    "docs/spark.md": _spark,
    "docs/tables.md": _tables,
    "docs/transactions.md": _transactions,
}
FOLDERS: Final = {"docs/security.md": ("node-0",)}
# What is left behind that is no topic and no table, and that the pages after it would feel; and how a piece came out.
AFTER: Final = {
    "docs/kafka.md": (
        ("sh", "antiphon client-metrics delete slow-producers\n"),
        ("python", "assert producer.flush(30) == 0 and outcomes == [None]\n"),
    ),
    "docs/security.md": (
        ("sh", "antiphon quota remove --user '*' --client-id reports\n"),
        ("sh", "antiphon quota remove --ip '*'\nantiphon quota remove --user '*'\n"),
    ),
    "docs/spark.md": (("python", "watch.stop()\n"),),
}
