"""Take an order: a row, a record and the offset of what was read, all of it or nothing, without any id to choose.

antiphon up --nodes 3          # in another terminal
python examples/all_or_nothing.py 127.0.0.1:7400
"""

import contextlib
import sys

import antiphon

STOCK, INCOMING, SHIPPED, GROUP = "example-stock", "example-incoming", "example-shipped", "example-takers"


def take(db: antiphon.Client, order: antiphon.Record, shard: int) -> None:
    """Take one from the stock and ship it; somebody else may have been first, then again."""
    article = (order.value or b"").decode()
    while True:
        with contextlib.suppress(antiphon.KeyLockedError, antiphon.VersionMismatchError):
            with db.transaction() as t:  # commits at the end of the block, aborts on an error
                left = int(t.get(STOCK, article).value)
                if left:
                    t.put(STOCK, article, str(left - 1))
                    t.append(SHIPPED, f"one {article}")
                t.commit_offsets(GROUP, {(INCOMING, shard): order.offset + 1})
            return


def main(servers: str) -> None:
    with antiphon.connect(servers) as db:
        db.create_table(STOCK, shards=4, exist_ok=True)
        for name in (INCOMING, SHIPPED):
            db.create_topic(name, exist_ok=True)
        with db.transaction() as t:
            t.put(STOCK, "cup", "2")
            t.put(STOCK, "plate", "5")
        incoming = db.topic(INCOMING)
        incoming.append_batch([b"cup", b"plate", b"cup", b"cup"])
        start = db.group_offsets(GROUP, [(INCOMING, 0)]).get((INCOMING, 0), 0)
        for order in incoming.read(shard=0, start=start):
            take(db, order, 0)
        rows = {row.key.decode(): row.value.decode() for row in db.table(STOCK).scan()}
        print("left:", rows)
        print("read up to:", db.group_offsets(GROUP, [(INCOMING, 0)])[INCOMING, 0])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
