"""What a decided transaction's participants are told: its marker, until each of them has it.

Every participant is asked again, for ever and with growing pauses, until it answers: the row in `__transactions` says what
is still to be done, so a successor goes on where this node stops. A participant that was told already answers the same. A
partition whose topic was deleted counts as done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from antiphon import system
from antiphon.coordination.transactions import Ending
from antiphon.errors import AntiphonError, UnknownShardError, UnknownTopicError, WrongKindError
from antiphon.gateway.interface import Gateway
from antiphon.model.cluster import EndOffsets, EndTransaction
from antiphon.model.internal import GROUPS_TABLE
from antiphon.transactions.internal_table import shard_of_name

MARKERS_AT_ONCE: Final = 128  # of this node, under way
WORKERS: Final = 16  # markers of one transaction at the same time
TRY_S: Final = 5.0
PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 2.0
TELL_AFTER: Final = 8  # rounds without success before the log has a line


class Endings:
    """Tells participants. `told` counts markers, for metrics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._room = asyncio.Semaphore(MARKERS_AT_ONCE)
        self.told = 0

    async def carry_out(self, name: str, ending: Ending, known_at: int) -> None:
        """Return when every participant has the marker."""
        left: list[Callable[[], Awaitable[None]]] = [
            partial(self._end_in_shard, ending, shard_id, known_at) for shard_id in ending.shards
        ]
        left += [partial(self._end_in_group, ending, group) for group in ending.groups]
        pause_s, rounds = PAUSE_FIRST_S, 0
        while left:
            left, reasons = await self._round(left)
            if not left:
                return
            rounds += 1
            if rounds % TELL_AFTER == 0:
                structlog.get_logger().warning(
                    "transaction_not_ended", transactional_id=name, left=len(left), reason=reasons[-1]
                )
            await asyncio.sleep(pause_s * system.rng().uniform(0.7, 1.3))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _round(
        self, calls: list[Callable[[], Awaitable[None]]]
    ) -> tuple[list[Callable[[], Awaitable[None]]], list[str]]:
        """Ask each once; returns those that did not answer, and why."""
        waiting = list(reversed(calls))
        left: list[Callable[[], Awaitable[None]]] = []
        reasons: list[str] = []

        async def work() -> None:
            while waiting:
                call = waiting.pop()
                async with self._room:
                    try:
                        await asyncio.wait_for(call(), TRY_S)
                    except AntiphonError as error:
                        left.append(call)
                        reasons.append(error.message)
                    except TimeoutError:
                        left.append(call)
                        reasons.append(f"no answer within {TRY_S} s")
                    else:
                        self.told += 1

        workers = [asyncio.ensure_future(work()) for _ in range(min(WORKERS, len(calls)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        return left, reasons

    async def _end_in_shard(self, ending: Ending, shard_id: int, known_at: int) -> None:
        request = EndTransaction(
            shard_id,
            ending.producer_id,
            ending.epoch,
            ending.number,
            ending.commit,
            timeout_ms=int(TRY_S * 1000),
        )
        try:
            await self._gateway.transactions.end(request)
        except (UnknownShardError, UnknownTopicError, WrongKindError):
            # Gone, unless this node has not heard of it yet.
            if self._gateway.metadata_version < known_at:
                raise

    async def _end_in_group(self, ending: Ending, group: str) -> None:
        leader = shard_of_name(self._gateway, GROUPS_TABLE, group).leader
        request = EndOffsets(group, ending.producer_id, ending.epoch, ending.number, ending.commit)
        await self._gateway.questions.ask(leader, request, TRY_S)
