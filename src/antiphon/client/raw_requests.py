"""Single requests, for programs that keep their own books: Spark's tasks, jobs and tests of the protocol."""

from abc import ABC, abstractmethod

from antiphon.client import log_reader
from antiphon.client.cluster import Cluster
from antiphon.model.body import reply_as
from antiphon.model.requests import AppendBatch, Appended, Fetched, OffsetReply, TableWrite, TableWritten
from antiphon.wire.frames import Buffer


class RawRequests(ABC):
    """The client's single requests. Each is sent again where that is harmless."""

    _cluster: Cluster

    @abstractmethod
    def _time(self, timeout_s: float | None) -> float:
        """The limit of a call."""

    async def fetch(
        self,
        shard_id: int,
        offset: int,
        *,
        max_bytes: int = log_reader.FETCH_BYTES,
        wait_ms: int = 0,
        isolation: str = "",
        timeout_s: float | None = None,
    ) -> tuple[Fetched, memoryview]:
        """Whole batches of a shard (by its cluster-wide id), from the batch that holds `offset`, exactly as in the log."""
        return await log_reader.fetch(
            self._cluster,
            shard_id,
            offset,
            isolation=isolation,
            wait_ms=wait_ms,
            max_bytes=max_bytes,
            timeout_s=self._time(timeout_s),
        )

    async def list_offset(
        self, shard_id: int, timestamp_ms: int, *, timeout_s: float | None = None
    ) -> OffsetReply:
        """First offset at or after a time; -1: the end of what is committed, -2: the first available offset."""
        return await log_reader.list_offset(self._cluster, shard_id, timestamp_ms, self._time(timeout_s))

    async def append_raw(
        self,
        shard_id: int,
        batch: Buffer,
        *,
        expected_offset: int | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """Append one RecordBatch that the caller built; a producer id makes repeats after lost connections harmless."""
        limit_s = self._time(timeout_s)
        request = AppendBatch(shard_id, expected_offset, int(limit_s * 1000))
        reply, _ = await self._cluster.call_shard(shard_id, request, (batch,), timeout_s=limit_s)
        return reply_as(Appended, reply, "for an append")

    async def write_raw(self, request: TableWrite, *, timeout_s: float | None = None) -> TableWritten:
        """Send one TableWrite that the caller numbered. It is repeated when a connection is lost."""
        reply, _ = await self._cluster.call_shard(request.shard_id, request, timeout_s=self._time(timeout_s))
        return reply_as(TableWritten, reply, "for a table write")

    async def new_producer_id(self) -> int:
        """A producer id that no other producer has."""
        return await self._cluster.producer_id(fresh=True)
