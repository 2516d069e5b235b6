"""Auditors tell nodes what they have found in their replicas, and take it back: nodes keep what they have acknowledged."""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError
from antiphon.model.findings import AuditNote, NoteAudit
from antiphon.node.audit_notes import KIND
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import Workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

PAUSE_S: Final = 0.1
ANSWER_S: Final = 1.0
SHARDS: Final = tuple(range(900_000, 900_006))
"""Of nobody, so that nothing else is found there."""


@workload("auditors", 31, Drawn(one_of(0, 0, 0, 0, 0, 0, 1)), logs_in=False)
class AuditorWorkload(Workload):
    """An auditor tells nodes what it has found in some shards, and that it has found nothing in others.

    Checked: each node tells as a finding what was acknowledged last of each shard, and nothing that was taken back, over
    kills and power failures; not where its disk has lost what was durable.
    """

    may_be_killed = False
    may_pause = False  # it must not miss that a machine's disk loses something

    def __init__(self, cluster: "SimulatedCluster") -> None:
        super().__init__(cluster, "auditors")
        # By node and shard what it may say; the empty text: nothing. A shard that is not here may be anything.
        self._may_say: dict[int, dict[int, set[str]]] = {
            machine.node_id: {shard_id: {""} for shard_id in SHARDS} for machine in cluster.machines
        }
        self._serial = 0
        self.outcomes = {"told": 0, "not_told": 0, "notes_judged": 0}

    async def _work_with(self, db: AsyncClient, process: "Process", _number: int) -> None:
        draw = process.random
        watching = asyncio.get_running_loop().create_task(self._watch())
        while not self.stopped:
            node_id = draw.choice(sorted(self._may_say))
            shards = tuple(sorted(draw.sample(SHARDS, draw.randint(1, 3))))
            self._serial += 1
            found = tuple(AuditNote(one, f"found {self._serial}") for one in shards if draw.random() < 0.6)
            await self._tell(db, node_id, NoteAudit(shards, found))
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))
        watching.cancel()

    async def _watch(self) -> None:
        while True:
            self._forget_hurt()
            await asyncio.sleep(PAUSE_S)

    async def _tell(self, db: AsyncClient, node_id: int, body: NoteAudit) -> None:
        now = {**dict.fromkeys(body.shards, ""), **{one.shard_id: one.what for one in body.found}}
        known = self._may_say[node_id]
        for shard_id, what in now.items():
            if shard_id in known:
                known[shard_id].add(what)
        try:
            await db._ask_node(node_id, body, ANSWER_S)  # noqa: SLF001 - as the audit does, without an event loop
        except AntiphonError:
            self.outcomes["not_told"] += 1
            return
        self.outcomes["told"] += 1
        self.cluster.tell("audit-told", node_id, str(now))
        known.update({shard_id: {what} for shard_id, what in now.items()})

    def _forget_hurt(self) -> None:
        for node_id in self.cluster.evidence.hurt:
            self._may_say.get(node_id, {}).clear()

    def check(self) -> None:
        """See `Workload`."""
        self._forget_hurt()
        for node in self.cluster.nodes:
            said = {one.shard_id: one.what for one in node.care.findings.now if one.kind == KIND}
            for shard_id, texts in self._may_say[node.node_id].items():
                self.outcomes["notes_judged"] += 1
                require(
                    said.get(shard_id, "") in texts,
                    "audit-note",
                    f"node {node.node_id} says {said.get(shard_id, '')!r}; it was told one of {sorted(texts)}",
                    shard_id,
                )
