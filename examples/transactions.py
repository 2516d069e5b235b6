"""Move records from one topic to another, each exactly once, however often this program is killed and started again.

antiphon up --nodes 3          # in another terminal
python examples/transactions.py 127.0.0.1:7400
"""

import sys

import antiphon

SOURCE, TARGET, GROUP = "example-orders", "example-invoices", "example-billing"


def main(servers: str) -> None:
    with antiphon.connect(servers) as db:
        for name in (SOURCE, TARGET):
            db.create_topic(name, exist_ok=True)
        db.topic(SOURCE).append_batch([b"a book", b"a lamp", b"a chair"])

        with db.producer("example-billing-0") as producer:  # whoever ran this before is fenced
            at = db.group_offsets(GROUP, [(SOURCE, 0)]).get((SOURCE, 0), 0)
            for record in db.topic(SOURCE).read(0, at, isolation="committed"):
                with producer.begin() as transaction:
                    transaction.append(TARGET, b"invoice for " + (record.value or b""))
                    transaction.send_offsets(GROUP, {(SOURCE, 0): record.offset + 1})
                print(f"moved the record at {record.offset} to {transaction.positions[0].offset}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
