"""Put, get, delete and watch: versions make updates safe without locks.

antiphon up --nodes 3          # in another terminal
python examples/table.py 127.0.0.1:7400
"""

import sys

import antiphon


def main(servers: str) -> None:
    with antiphon.connect(servers) as db:
        aircraft = db.create_table("example-aircraft", shards=4, exist_ok=True)
        aircraft.delete_range("", "")

        with aircraft.watch() as changes:  # from now on
            # Only if it is not there yet.
            version = aircraft.put("N14228", b"on the ground", expected_version=antiphon.ABSENT)

            # Only if nobody changed it since we looked.
            row = aircraft.get("N14228")
            aircraft.put("N14228", b"boarding", expected_version=row.version)
            try:
                aircraft.put("N14228", b"lost update", expected_version=version)
            except antiphon.VersionMismatchError as error:
                print(f"refused: {error}")

            aircraft.delete("N14228")
            for _ in range(3):
                change = next(changes)
                print(change.kind, change.key, change.value, f"version {change.version.id}")

        aircraft.put_many({f"N{number:05}": b"parked" for number in range(100)})
        print("in order:", [row.key.decode() for row in aircraft.scan(prefix="N0001")])
        db.delete_table("example-aircraft")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
