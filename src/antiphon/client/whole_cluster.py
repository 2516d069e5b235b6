"""Requests about the whole cluster, for programs that look after all of it, such as backups."""

from typing import Any

from antiphon.client.cluster import Cluster
from antiphon.errors import UnavailableError
from antiphon.model.metadata import ClusterMeta


class WholeCluster:
    """See the module's text. `timeout_s` bounds calls that name no other time."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def refresh(self) -> ClusterMeta:
        """The newest metadata that any node in reach has. Raises UnavailableError where none answers."""
        await self._cluster.refresh_from_all()
        if self._cluster.meta is None:
            raise UnavailableError(f"no node answered at {', '.join(self._cluster.servers)}; are they up?")
        return self._cluster.meta

    async def ask_shard(
        self, shard_id: int, body: Any, *, timeout_s: float | None = None
    ) -> tuple[Any, memoryview]:
        """Send a request that may be repeated to a shard's leader; the reply and its bulk bytes."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return await self._cluster.call_shard(shard_id, body, timeout_s=limit_s)

    async def ask_coordinator(self, body: Any, *, timeout_s: float | None = None) -> tuple[Any, memoryview]:
        """Send a request, once, to the node that coordinates as far as is known: to the leader of `__cluster`.

        Raises UnavailableError where none is known, TimedOutError, and what it answers.
        """
        meta, limit_s = self._cluster.meta, self._timeout_s if timeout_s is None else timeout_s
        if meta is None:
            raise UnavailableError("this client knows no node yet: connect it first")
        return await self._cluster.ask_node(meta.controller, body, limit_s)
