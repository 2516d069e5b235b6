"""Has the others bring back what this node's disk has lost, for replicas that do not come to that by themselves.

Two kinds wait here: those of which the scrub has found that something is not as it was written, and those that do not open
because a table's store is damaged and their log cannot make it anew. The first is stopped and opened again as damaged, as
after a read that has met the damage. The second gives up log and store, but not its promise. Both then follow without a
vote, and their leader sends them what they lack.

That is done only while the shard can do without the replica: a replica that is damaged does not vote, and the only one of a
shard serves what it can still read. So the other members are asked first whether theirs are well, and asked again later.
Nobody is asked where the replica's own log can make its store anew.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from antiphon.errors import AntiphonError, DamagedLogError, DamagedStoreError
from antiphon.model.metadata import CLUSTER_SHARD_ID, ShardMeta
from antiphon.model.requests import GetStatus, StatusReply
from antiphon.node.findings import WAITS, Closed, Noted

if TYPE_CHECKING:
    from antiphon.log.recovery import DamageReport
    from antiphon.node.context import NodeContext
    from antiphon.node.findings import Findings
    from antiphon.partition.partition import Partition

    Damage = DamageReport | DamagedStoreError

LOOK_S: Final = 5.0  # between two looks at what waits
ASK_S: Final = 5.0
KIND: Final = "damage_found"
NEEDED: Final = (
    "give the shard a third replica (`antiphon topic alter NAME --replicas 3`): with two it cannot do without this one, "
    "which is then fetched again"
)
ALONE: Final = "nobody else has the shard: what cannot be read comes back only from a backup"
WELL: Final = ("ok", "disk_full")


class ClosedReplicas(Closed, Protocol):
    """Replicas that are not open."""

    def start_over(self, shard_id: int) -> None:
        """Let a replica that does not open give up what it has, but for its promise, and open it again."""


class Mending:
    """See the module's text; of one node, on its event loop."""

    def __init__(
        self, node: "NodeContext", shards: Callable[[], ClosedReplicas], findings: "Findings"
    ) -> None:
        self._node = node
        self._shards = shards
        self._findings = findings
        self._found: dict[int, tuple[Partition, Damage]] = {}  # in which open replica, and what
        self._log = structlog.get_logger()

    def waits(self, shard_id: int) -> bool:
        """Is something known to be damaged that is not mended yet, on a replica that serves?"""
        return shard_id in self._found

    def found(self, host: "Partition", damage: "Damage") -> None:
        """The replica's files are not as they were written."""
        host.state.lines.error("scrub_found_damage", reason=text_of(damage))
        self._found[host.shard_id] = host, damage
        self._findings.note(Noted(KIND, host.shard_id, text_of(damage), WAITS))

    async def run(self, read_again: Callable[[int], None]) -> None:
        """Until the node ends. `read_again` is told of replicas that are to be read again once they are mended."""
        while True:
            for shard_id, (host, damage) in list(self._found.items()):
                if await self._is_settled(host, damage):
                    del self._found[shard_id]
                    self._findings.take_back(shard_id, KIND)
                    read_again(shard_id)
            shards = self._shards()
            for shard_id, error in list(shards.broken.items()):
                if isinstance(error, DamagedStoreError) and await self._can_do_without(shard_id):
                    self._log.warning("replica_starts_over", shard=shard_id, reason=error.message)
                    shards.start_over(shard_id)
            await asyncio.sleep(LOOK_S)

    async def _is_settled(self, host: "Partition", damage: "Damage") -> bool:
        """Stop the replica where that may be; is there nothing more to do here?"""
        shard_id = host.shard_id
        if self._is_over(host):
            return True  # somebody else has met the damage
        # First of all: two replicas whose damage is gone would else wait for each other, each for the other's finding.
        if await self._is_gone(host, damage):
            return True
        if not _can_make_anew(host, damage) and not await self._can_do_without(shard_id):
            self._findings.note(Noted(KIND, shard_id, text_of(damage), self._what_to_do(shard_id)))
            return False
        if self._is_over(host) or await self._is_gone(host, damage):
            return True
        if isinstance(damage, DamagedStoreError):
            host.driver.fail(damage)
            return True
        await self._node.loop.run_in_executor(None, host.log.note_damage, damage)
        error = DamagedLogError(text_of(damage), offset=damage.offset, position=damage.position)
        host.driver.fail(error)
        return True

    def _is_over(self, host: "Partition") -> bool:
        """Is the replica not the one any more in which that was found? One that was opened anew may be whole again."""
        return self._node.hosts.get(host.shard_id) is not host or is_over(host)

    async def _is_gone(self, host: "Partition", damage: "Damage") -> bool:
        """Was the damaged file removed since, as the log was trimmed or reset? What is left is not to be given up."""
        if isinstance(damage, DamagedStoreError):
            return False
        return not await self._node.loop.run_in_executor(None, host.log.disk.exists, damage.path)

    async def _can_do_without(self, shard_id: int) -> bool:
        """Would the shard go on without this replica, and have the others all that there is to fetch?"""
        if shard_id == CLUSTER_SHARD_ID:
            voters = self._node.voters.voting
            answers = await asyncio.gather(*(self._is_well(one, shard_id) for one in self._others(voters)))
            return sum(answers) > len(voters) // 2
        known = self._node.view.shard(shard_id)
        if known is None or known[1].outgoing:
            return False
        shard = known[1]
        others = self._others(shard.ensemble)
        answers = await asyncio.gather(*(self._is_well(one, shard_id) for one in others))
        well = {one for one, answer in zip(others, answers, strict=True) if answer}
        host = self._node.hosts.get(shard_id)
        if host is not None and host.mode.needs_every_other:
            return bool(others) and len(well) == len(others)
        return _are_enough(shard, well)

    def _what_to_do(self, shard_id: int) -> str:
        """For people, where the shard cannot do without this replica now. More than two members come back by themselves."""
        known = self._node.view.shard(shard_id)
        members = self._node.voters.voting if known is None else known[1].ensemble
        return {1: ALONE, 2: NEEDED}.get(len(members), WAITS)

    def _others(self, members: Sequence[int]) -> list[int]:
        return [one for one in members if one != self._node.node_id]

    async def _is_well(self, node_id: int, shard_id: int) -> bool:
        """Has this node a replica of the shard with which nothing is wrong?"""
        try:
            reply = await self._node.link(node_id).ask(GetStatus(), ASK_S)
        except AntiphonError:
            return False
        if not isinstance(reply, StatusReply):
            return False
        if any(one.shard_id == shard_id and not one.mended_ms for one in reply.findings):
            return False
        return any(one.shard_id == shard_id and one.state in WELL for one in reply.replicas)


def _can_make_anew(host: "Partition", damage: "Damage") -> bool:
    """Does the replica's own log, which is whole, tell its store from the beginning? It opens again once that is read."""
    return isinstance(damage, DamagedStoreError) and host.log.log_start == 0


def _are_enough(shard: ShardMeta, well: set[int]) -> bool:
    """Can these elect a leader that has everything that was committed?"""
    majority = len(well & set(shard.ensemble)) > len(shard.ensemble) // 2
    live = bool(well & set(shard.live))
    return {"majority": majority, "live": live}.get(shard.fence, majority and live)


def is_over(host: "Partition") -> bool:
    """Is this replica closed, stopped or known to be damaged?"""
    return host.state.closed or host.state.failed is not None or host.log.damaged is not None


def text_of(damage: "Damage") -> str:
    """For people."""
    if isinstance(damage, DamagedStoreError):
        return damage.message
    return f"at offset {damage.offset} ({damage.path}, byte {damage.position}): {damage.reason}"
