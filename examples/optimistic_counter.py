"""A counter that several processes raise at the same time, by compare-and-set on its version.

antiphon up --nodes 3          # in another terminal
python examples/optimistic_counter.py 127.0.0.1:7400
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import antiphon


def raise_counter(table: antiphon.Table, key: str) -> int:
    """Add one; returns how many tries it took."""
    tries = 1
    while True:
        row = table.find(key)
        value, expected = (0, antiphon.ABSENT) if row is None else (int(row.value or b"0"), row.version.id)
        try:
            table.put(key, b"%d" % (value + 1), expected_version=expected)
        except antiphon.VersionMismatchError:
            tries += 1
        else:
            return tries


def main(servers: str) -> None:
    with antiphon.connect(servers) as db, ThreadPoolExecutor(4) as pool:
        table = db.table("default")
        if "example-counter" in table:
            table.delete("example-counter")
        tries = list(pool.map(lambda _: raise_counter(table, "example-counter"), range(40)))
        final = table.get("example-counter").value
        print(f"counter is {final!r} after 40 additions in {sum(tries)} tries")
        table.delete("example-counter")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
