"""Append to a topic and read it back: keys, batches, conditional appends.

antiphon up --nodes 3          # in another terminal
python examples/append_and_read.py 127.0.0.1:7400
"""

import sys

import antiphon


def main(servers: str) -> None:
    with antiphon.connect(servers) as db:
        flights = db.create_topic("example-flights", shards=2, exist_ok=True)

        # Returns when a majority of the replicas has it on disk. Records with the same key go to the same shard.
        at = flights.append(b"EWR -> IAH", key=b"N14228", headers=[("carrier", b"UA")])
        print(f"first record: shard {at.shard}, offset {at.offset}, term {at.term}")

        # One durable batch a shard.
        positions = flights.append_batch([(b"N24211", b"LGA -> IAH"), (b"N619AA", b"JFK -> MIA")])
        print(f"batch: {[(p.shard, p.offset) for p in positions]}")

        # A conditional append lands exactly where it says, or nowhere: two writers can not both win.
        _, end = flights.offsets(at.shard)
        flights.append(b"mine", shard=at.shard, expected_offset=end)
        try:
            flights.append(b"too late", shard=at.shard, expected_offset=end)
        except antiphon.OffsetMismatch as error:
            print(f"refused: expected offset {error.expected}, the log is at {error.actual}")

        # All shards, each in its order.
        for record in flights.read():
            print(record.shard, record.offset, record.key, record.value)

        db.delete_topic("example-flights")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
