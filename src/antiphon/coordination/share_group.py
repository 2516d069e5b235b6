"""A share group (KIP-932) as a pure state machine: the members, and which partitions each of them reads.

Several members may read one partition, so nobody has to give anything up before another one is given it: a member has what
its target says as soon as it hears of it. Everything else is as in a group of the consumer protocol. Who works on which
record is decided where the partition is led (`share_partition`).
"""

from dataclasses import dataclass

import msgspec

from antiphon.coordination import consumer_terms as t
from antiphon.coordination.consumer_group import ConsumerGroup, updated
from antiphon.coordination.consumer_terms import NO_PLACES, Beat, Beaten, Catalog, Member, Refused


@dataclass(slots=True)
class ShareGroup(ConsumerGroup):
    """One share group. Its bounds name the assignor `simple` only."""

    def heartbeat(self, now_ms: int, asked: Beat, catalog: Catalog) -> Beaten | Refused:
        """ShareGroupHeartbeat."""
        if asked.epoch == t.LEAVE_EPOCH:
            return self._leave(now_ms, asked)
        found = self._admit(asked)
        if isinstance(found, Refused):
            return found
        old, member = found, updated(found, asked)
        is_new = old.member_id not in self.members
        self._put(member)
        self._follow(catalog, is_new or (old.topics, old.rack_id) != (member.topics, member.rack_id))
        if self.row.epoch > self.row.target_epoch:
            self._assign(catalog)
        # What it shows stays known: answers that are lost one after the other must not put it behind what it knows.
        shown = member.epoch if asked.epoch == t.JOIN_EPOCH else asked.epoch
        after = msgspec.structs.replace(
            member,
            epoch=self.row.target_epoch,
            previous_epoch=member.previous_epoch if shown == self.row.target_epoch else shown,
            assigned=self.targets.get(member.member_id, NO_PLACES),
        )
        self._put(after)
        self._time(now_ms, after, was=old)
        tells = asked.epoch != after.epoch or asked.topics is not None or after.assigned != old.assigned
        return Beaten(after.member_id, after.epoch, after.assigned if tells else None)

    def _in_epoch(self, member: Member, asked: Beat) -> Member | Refused:
        """Is this what the member may think that its epoch is? The answer with the last one may have been lost."""
        known = asked.epoch in {t.JOIN_EPOCH, member.epoch, member.previous_epoch}
        return member if known else Refused.FENCED_EPOCH

    def _put(self, member: Member) -> None:
        if self.members.get(member.member_id) != member:
            self.members[member.member_id] = member
            self._changes[t.Kind.MEMBER, member.member_id] = member

    def _keep(self, now_ms: int, member: Member) -> None:
        self.members[member.member_id] = member
        self._time(now_ms, member)
