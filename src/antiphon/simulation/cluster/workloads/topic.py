"""Appends to a topic: each acknowledged one is there once, where it was said to be, those of one client in their order.

An append that names the offset which it expects is there or nowhere. Where it is refused, the log ended where the refusal
says at some moment between request and answer.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError, OffsetMismatchError, TimedOutError
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster.workloads.judged_records import each_once
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    Workload,
    insist,
    shards_of,
)
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.topic_writer import Position
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

MILLION = 1_000_000
PIPELINED_MAX = 8
AGAIN_MAX = 3


class _Guesses:
    """Where a client believes each shard's log to end. Half of the time it goes by that, and does not ask."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._ends: dict[int, int] = {}

    def end(self, shard: int) -> int | None:
        """What it goes by; None: it asks."""
        return self._ends.get(shard) if self._draw.random() < 0.5 else None

    def learn(self, shard: int, end: int) -> None:
        """It was told of an end."""
        self._ends[shard] = end


class TopicWorkload(Workload):
    """Append, with and without an expected offset.

    Checked: acknowledged records are committed, once, at their offsets; those of one client are in order. A conditional
    append is at its offset or nowhere, and was refused only if the log ended elsewhere at some moment between request and
    answer. An append whose outcome is not known and that is tried again (`tries_again`) is there once.

    `losses_allowed`: the commit rule may lose what it acknowledged.
    """

    option = "appenders"

    def __init__(
        self, cluster: "SimulatedCluster", name: str = "log", *, losses_allowed: bool = False
    ) -> None:
        super().__init__(cluster, name)
        self._losses_allowed = losses_allowed
        self._key = bytes(cluster.options.record_bytes) or None
        self.shard_ids: list[int] = []
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # value -> (shard, offset)
        self._sent: set[bytes] = set()
        self._unknown: set[bytes] = set()  # their outcome is not known: they may land late
        self._pending: dict[bytes, None] = {}  # no outcome yet
        self._expected: dict[bytes, int] = {}  # value -> offset that its append named
        self.outcomes = {"ok": 0, "refused": 0, "unknown": 0}
        if cluster.options.tries_again:
            self.outcomes["again"] = 0

    async def set_up(self, db: AsyncClient) -> None:
        """See `Workload`."""
        options = self.cluster.options
        config = dict(one.split("=", 1) for one in options.topic_config.split())
        if options.commit:
            config["commit"] = options.commit
        writers = {"writers": "multi"} if options.profile == "multi" else {}
        if writers and options.trim_weight:
            writers |= {"segment.bytes": "4096", "retention.bytes": "1"}  # trimmed when somebody keeps house
        await insist(
            lambda: db.create_topic(
                self.name,
                shards=options.topic_shards,
                replicas=options.replicas,
                profile="oxia" if options.profile == "multi" else options.profile,
                config={**config, **writers},
            )
        )
        self.shard_ids = await shards_of(db, self.name)

    async def _work_with(self, db: AsyncClient, process: "Process", number: int) -> None:
        topic = await insist(lambda: _topic(db, self.name))
        draw, serial = process.random, 0
        guesses = _Guesses(self.cluster.stream(f"conditions of {self.name} {number}"))
        while not self.stopped:
            shard = draw.randrange(len(self.shard_ids))
            count = 1
            if draw.randrange(MILLION) < self.cluster.options.conditional_ppm:
                await self._conditional(db, topic, shard, number, serial, guesses)
                serial += 1
            else:
                count = draw.randint(1, PIPELINED_MAX)
                work = [self._one(topic, shard, number, serial + i) for i in range(count)]
                await asyncio.gather(*work)
                serial += count
            await self.think(process, count)

    async def _one(
        self, topic: Any, shard: int, number: int, serial: int, expected: int | None = None
    ) -> bool:
        value = b"%d:%d:%d" % (number, shard, serial)
        self._sent.add(value)
        if expected is not None:
            self._expected[value] = expected
        committed = self.cluster.evidence.truth(self.shard_ids[shard]).end
        self._pending[value] = None
        try:
            at = await topic.append(
                value, key=self._key, shard=shard, expected_offset=expected, timeout_s=PATIENCE_S
            )
        except OffsetMismatchError as error:
            self.outcomes["refused"] += 1
            self._check_refusal(value, shard, int(error.details["actual"]), committed)
            return False
        except AntiphonError as error:
            self._unknown.add(value)
            self.cluster.tell("append-failed", value.decode(), error.code)
            again = await self._again(topic, error)
            if again is None:
                self.outcomes["unknown"] += 1
                return False
            at = again
        finally:  # it does not come to this where the process ends
            self._pending.pop(value, None)
        self.outcomes["ok"] += 1
        self.acknowledged[value] = (self.shard_ids[shard], at.offset)
        self.cluster.tell("appended", value.decode(), at.offset)
        self._check_acknowledged(value)
        return True

    async def _again(self, topic: Any, error: AntiphonError) -> "Position | None":
        """Where an append is that was tried again; None: that is not known either."""
        if not self.cluster.options.tries_again:
            return None
        for _ in range(AGAIN_MAX):
            if not (isinstance(error, TimedOutError) and error.outcome_unknown):
                return None
            try:
                positions: list[Position] = await topic.retry(error, timeout_s=PATIENCE_S)
            except AntiphonError as later:
                error = later
            else:
                self.outcomes["again"] += 1
                return positions[0]
        return None

    def died(self, number: int) -> None:
        """See `Workload`."""
        lost = [value for value in self._pending if value.startswith(b"%d:" % number)]
        self.outcomes["unknown"] += len(lost)
        self._unknown.update(lost)
        for value in lost:
            self._pending.pop(value, None)

    def was_sent(self, value: bytes) -> bool:
        """Did one of the clients send this?"""
        return value in self._sent

    async def _conditional(
        self, db: AsyncClient, topic: Any, shard: int, number: int, serial: int, guesses: "_Guesses"
    ) -> None:
        """Append at the end that this client takes for the log's: it asks, or goes by what it knows."""
        end = guesses.end(shard)
        if end is None:
            try:
                end = (await db.list_offset(self.shard_ids[shard], -1)).offset
            except AntiphonError:
                await asyncio.sleep(0.05)
                return
        landed = await self._one(topic, shard, number, serial, expected=end)
        guesses.learn(shard, end + 1 if landed else end)

    @property
    def _is_judged(self) -> bool:
        """Is what clients are told committed?"""
        return not self._losses_allowed and self.cluster.options.profile != "multi"

    def _check_refusal(self, value: bytes, shard: int, actual: int, committed: int) -> None:
        """The log ended at `actual` some time after the request was made, when `committed` was committed."""
        if self._is_judged:
            shard_id = self.shard_ids[shard]
            end = self.cluster.evidence.truth(shard_id).end
            require(
                committed <= actual <= end,
                "refusal",
                f"{value!r} was refused because the log ends at {actual}; committed was {committed} before it, now {end} is",
                shard_id,
            )

    def _check_acknowledged(self, value: bytes) -> None:
        """What was acknowledged is committed, there, now."""
        if not self._is_judged:
            return
        shard_id, offset = self.acknowledged[value]
        truth = self.cluster.evidence.truth(shard_id)
        require(
            offset < truth.end,
            "acknowledged-committed",
            f"{value!r} was acknowledged at {offset}, committed is {truth.end}",
            shard_id,
        )

    def check(self) -> None:
        """See `Workload`."""
        for shard_id in self.shard_ids:
            if self.cluster.options.profile == "multi":
                self._check_multi(shard_id)
            else:
                self._check_shard(shard_id)

    def _check_multi(self, shard_id: int) -> None:
        """Where every replica writes, what was acknowledged is an entry. `settle_multi` finds out whether all have it."""
        truth = self.cluster.watch.multi.truth(shard_id)
        found = {
            bytes(record.value or b"")
            for batch in (*truth.entries.values(), *truth.lost)
            for record in decode_records(batch)
        }
        missing = [value for value, (shard, _) in self.acknowledged.items() if shard == shard_id]
        missing = [value for value in missing if value not in found]
        require(
            not missing, "acknowledged-kept", f"{missing[:5]} were acknowledged, and are no entries", shard_id
        )

    def _check_shard(self, shard_id: int) -> None:
        found: dict[bytes, int] = {}
        last: dict[int, int] = {}
        for value, offset in each_once(self.cluster.evidence.truth(shard_id), self._sent):
            found[value] = offset
            require(
                self._expected.get(value, offset) == offset,
                "condition-held",
                f"{value!r} expected to be at {self._expected.get(value)}, it is at {offset}",
                shard_id,
            )
            if value in self._unknown:
                continue
            number, _, serial = (int(part) for part in value.split(b":"))
            require(
                last.get(number, -1) < serial,
                "order",
                f"{value!r} comes after number {last.get(number)} of the same client",
                shard_id,
            )
            last[number] = serial
        for value, (shard, offset) in self.acknowledged.items():
            if shard == shard_id and not (self._losses_allowed and value not in found):
                require(
                    found.get(value) == offset or self._losses_allowed,
                    "acknowledged-kept",
                    f"{value!r} was acknowledged at {offset}, it is at {found.get(value)}",
                    shard_id,
                )


async def _topic(db: AsyncClient, name: str) -> Any:
    return await db.topic(name)
