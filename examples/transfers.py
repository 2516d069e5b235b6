"""Move money between accounts that lie in several shards of a table, with a journal in a topic: all of it, or nothing.

antiphon up --nodes 3          # in another terminal
python examples/transfers.py 127.0.0.1:7400
"""

import contextlib
import sys

import antiphon
from antiphon.client.sync_producer import Producer

ACCOUNTS, JOURNAL = "example-accounts", "example-journal"
LOST = (antiphon.KeyLockedError, antiphon.VersionMismatchError)  # another transaction was first


def transfer(producer: Producer, source: str, target: str, amount: int) -> None:
    """Move an amount; ValueError where there is not enough."""
    while True:
        with contextlib.suppress(*LOST):
            with producer.begin() as t:
                balances = {name: int(t.get(ACCOUNTS, name).value) for name in (source, target)}
                if balances[source] < amount:
                    raise ValueError(f"{source} has {balances[source]}, not {amount}")  # aborts
                t.put(ACCOUNTS, source, str(balances[source] - amount))
                t.put(ACCOUNTS, target, str(balances[target] + amount))
                t.append(JOURNAL, f"{amount} from {source} to {target}")
            return


def main(servers: str) -> None:
    with antiphon.connect(servers) as db:
        accounts = db.create_table(ACCOUNTS, shards=4, exist_ok=True)
        db.create_topic(JOURNAL, exist_ok=True)
        for name in ("alice", "bob", "carol"):
            accounts.put(name, "100")
        with db.producer("example-transfers-0") as producer:
            transfer(producer, "alice", "bob", 5)
            transfer(producer, "bob", "carol", 30)
            try:
                transfer(producer, "carol", "alice", 1_000)
            except ValueError as error:
                print(f"refused: {error}")
            with producer.begin() as t:  # what it reads belongs together, or the commit says that it does not
                balances = {name: int(t.get(ACCOUNTS, name).value) for name in ("alice", "bob", "carol")}
        print(balances, "together", sum(balances.values()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
