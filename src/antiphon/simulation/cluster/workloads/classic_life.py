"""One life of a member of the classic protocol in a group that has members of both protocols, one after the other kind.

It gives up everything before it joins. Where it leads, it gives out the partitions in turn. It counts on what it has only
while whoever coordinates by now has answered it: in a classic group, one that is deposed and does not know it answers, too.
"""

import contextlib
import struct
from typing import TYPE_CHECKING, Any, Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import groups as m
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.consumer_member import REFUSED, TOPIC, ConsumerMember
from antiphon.simulation.cluster.workloads.kept_groups import Coordinator, coordinator_of

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster

JOIN_GROUP, CLASSIC_HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
JOIN_EXTRA_S: Final = 2.0  # over the time that a rebalance may take
PROTOCOL: Final = "range"
MIXED: Final = "both"
ANEW: Final = frozenset({code.UNKNOWN_MEMBER_ID, code.ILLEGAL_GENERATION})


class ClassicLife(ConsumerMember):
    """See the module's text."""

    group = MIXED
    refused = REFUSED | {code.ILLEGAL_GENERATION, code.REBALANCE_IN_PROGRESS}
    commit_version = 7
    _member_id = ""
    _rejoins = True
    _members: tuple[str, ...] = ()  # where it leads

    async def _heartbeat(self) -> None:
        if self._rejoins:
            await self._join()
            return
        sent_s, by = self._workload.now, self._coordinates()
        request = m.HeartbeatRequest(group_id=self.group, generation_id=self._epoch, member_id=self.name)
        found = await self._ask_coordinator(CLASSIC_HEARTBEAT, 3, request)
        if found.error_code == code.REBALANCE_IN_PROGRESS:
            if self._owned and self._draw.random() < 0.5:
                await self._consume()
            await self._join()
        elif found.error_code in ANEW:
            self._begin_anew(found.error_code)
        elif found.error_code:
            self._troubled("heartbeat", found.error_code)
        elif by is not None and by == self._coordinates():
            self._ok_s = sent_s
            if set(self._owned) - set(self._positions):
                await self._begin()

    def _coordinates(self) -> Coordinator | None:
        """Who coordinates the group, if that is whom this member asks."""
        cluster: SimulatedCluster = self._workload.cluster
        found = coordinator_of(cluster, self.group)
        asked = None if self._coordinator is None else self._coordinator[0]
        return found if found is not None and found.host == asked else None

    def _begin_anew(self, error: int) -> None:
        self._workload.cluster.tell("anew", self.name, self._epoch, error)
        self._release()
        if error == code.UNKNOWN_MEMBER_ID:
            self._member_id = ""

    def _release(self) -> None:
        super()._release()
        self._rejoins = True

    async def _join(self) -> None:
        self._release()
        rebalance_ms = 2 * self._history.session_ms
        subscription = struct.pack(f">hih{len(TOPIC)}sii", 1, 1, len(TOPIC), TOPIC.encode(), -1, 0)
        request = m.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._history.session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[m.JoinProtocol(name=PROTOCOL, metadata=subscription)],
        )
        found = await self._ask_coordinator(JOIN_GROUP, 5, request, rebalance_ms / 1000 + JOIN_EXTRA_S)
        if found.error_code == code.MEMBER_ID_REQUIRED:
            self._member_id = found.member_id
        elif found.error_code in ANEW:
            self._begin_anew(found.error_code)
        elif found.error_code:
            self._troubled("join", found.error_code)
        else:
            if self._epoch > 0:
                self._epochs.append(self._epoch)
            self._member_id = self.name = found.member_id
            self._epoch = found.generation_id
            leads = found.leader == self.name
            self._members = tuple(each.member_id for each in found.members) if leads else ()
            await self._sync()

    async def _sync(self) -> None:
        sent_s, by = self._workload.now, self._coordinates()
        partitions = sorted(self._workload.shard_ids)
        parts = {name: partitions[at :: len(self._members)] for at, name in enumerate(self._members)}
        request = m.SyncGroupRequest(
            group_id=self.group,
            generation_id=self._epoch,
            member_id=self.name,
            assignments=[
                m.SyncAssignment(member_id=name, assignment=packed_assignment(part))
                for name, part in parts.items()
            ],
        )
        found = await self._ask_coordinator(
            SYNC_GROUP, 3, request, 2 * self._history.session_ms / 1000 + JOIN_EXTRA_S
        )
        if found.error_code in ANEW:
            self._begin_anew(found.error_code)
        elif found.error_code:
            self._troubled("sync", found.error_code)
        elif by is not None and by == self._coordinates():
            answered_s = self._workload.now
            if answered_s >= sent_s + self._history.lease_s:
                # The answer was held back, or it stood still: only what is answered from now on is sure.
                return
            self._ok_s, self._rejoins = sent_s, False
            self._history.outcomes["classics-joined"] += 1
            self._take(read_assignment(found.assignment))
            if self._owned:
                await self._begin()

    async def _begin(self) -> None:
        """Find out where to begin with what is new; a classic member does not name itself."""
        new = tuple(sorted(set(self._owned) - set(self._positions)))
        if await self._fetch(new, as_member=False):
            for one in self._history.found[-len(new) :]:
                if one.partition in self._owned:
                    self._positions[one.partition] = max(0, one.offset)

    async def _leave(self) -> None:
        self._release()
        request = m.LeaveGroupRequest(group_id=self.group, member_id=self._member_id)
        with contextlib.suppress(NoAnswerError):
            await self._ask_coordinator(LEAVE_GROUP, 1, request)


def packed_assignment(partitions: list[int]) -> bytes:
    """A ConsumerProtocolAssignment of the topic."""
    name, count = TOPIC.encode(), len(partitions)
    return struct.pack(f">hih{len(name)}si{count}ii", 1, 1, len(name), name, count, *partitions, -1)


def read_assignment(data: bytes) -> tuple[int, ...]:
    """Partitions of the topic that such bytes name."""
    if not data or struct.unpack_from(">i", data, 2)[0] == 0:
        return ()
    at = 8 + struct.unpack_from(">h", data, 6)[0]
    count: Any = struct.unpack_from(">i", data, at)[0]
    return tuple(struct.unpack_from(f">{count}i", data, at + 4))
