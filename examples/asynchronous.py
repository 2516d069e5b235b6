"""The same client on an event loop: many puts at once travel together.

antiphon up --nodes 3          # in another terminal
python examples/asynchronous.py 127.0.0.1:7400
"""

import asyncio
import sys
import time

import antiphon
import antiphon.aio


async def main(servers: str) -> None:
    async with antiphon.aio.connect(servers) as db:
        table = await db.table("default")  # a fresh cluster has it

        started = time.perf_counter()
        # put() returns a future at once; what is asked for in one turn of the loop leaves as one request per shard.
        versions = await asyncio.gather(*(table.put(f"example-{i}", b"%d" % i) for i in range(5000)))
        print(f"{len(versions) / (time.perf_counter() - started):,.0f} durable puts a second")

        rows = await table.get_many([f"example-{i}" for i in range(3)])
        print([row.value for row in rows if row is not None])

        async for row in table.scan("example-1", "example-10"):
            print(row.key, row.version.id)
        await table.delete_range("example-", "example.")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400"))
