"""Sessions and what is built on them: a lock with a fencing token, a leader, a counter, a queue, a registry of services.

antiphon up --nodes 3          # in another terminal
python examples/leases.py 127.0.0.1:7400
"""

import sys

import antiphon
from antiphon.recipes import Counter, LeaderElection, Lock, Queue, ServiceRegistry


def main(servers: str) -> None:
    with antiphon.connect(servers) as db:
        table = db.create_table("example-leases", shards=1, exist_ok=True)

        with db.session(timeout_s=5) as session:
            table.put("leader", b"me", session=session)
            print("while the session is open:", table.get("leader").value)
        print("when it is closed:", table.find("leader"))

        with Lock(db, "example-leases", "nightly-report") as lock:
            with table.transaction() as t:
                lock.guard(t)  # refused if somebody else has the lock by now
                t.put("report", f"written under token {lock.token}")
            print(table.get("report").value)

        with LeaderElection(db, "example-leases", "scheduler", candidate="host-7") as election:
            print("who leads:", election.leader())

        orders = Counter(db, "example-leases", "orders")
        print("orders:", [orders.add() for _ in range(3)][-1] - orders.add(-3), "were counted and taken back")

        with db.session() as session:
            mails = Queue(db, "example-leases", "mails")
            mails.put(b"hello")
            with mails.take(session, timeout_s=10) as mail:
                print("to be sent:", mail.item)

            services = ServiceRegistry(db, "example-leases")
            services.register("mail", "host-7", b"10.0.0.7:25", session)
            print("services:", services.instances("mail"))
        print("without their sessions:", services.instances("mail"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
