"""One of several leaders of a ledger, as a process: submits moves in waves and says of each what became of it.

    contending_leader.py SERVERS TOPIC NAME WAVES

A line for each move, `NAME OFFSET` or `NAME ERROR`, and at the end `state` with what it knows of the ledger.
"""

import asyncio
import sys

from antiphon.client.aio import connect
from antiphon.client.log_backed_store import AsyncLogBackedStore
from antiphon.errors import OffsetMismatchError
from tests.client.ledger import Ledger, OverdrawnError, apply, move, validate

AMOUNTS = (9, -4, -2, -7, 5)


async def submit(
    store: AsyncLogBackedStore[Ledger], name: str, amount: int, *, reevaluate: bool
) -> tuple[str, str]:
    try:
        applied = await store.submit(move(name, amount), reevaluate=reevaluate)
    except (OffsetMismatchError, OverdrawnError) as error:
        return name, type(error).__name__
    return name, str(applied.offset)


async def wave(store: AsyncLogBackedStore[Ledger], who: str, number: int) -> list[tuple[str, str]]:
    """A few moves at once; every other wave insists."""
    moves = [
        submit(store, f"{who}-{number}-{i}", amount, reevaluate=number % 2 == 0)
        for i, amount in enumerate(AMOUNTS)
    ]
    return await asyncio.gather(*moves)


async def main(servers: str, topic: str, who: str, waves: int) -> None:
    async with (
        connect(servers) as db,
        AsyncLogBackedStore(db, topic, initial=Ledger(), apply=apply, validate=validate) as store,
    ):
        for number in range(waves):
            for name, outcome in await wave(store, who, number):
                print(name, outcome, flush=True)
        print("state", *await store.catch_up(), flush=True)
        sys.stdin.readline()
        print("state", *await store.catch_up(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
