"""A group of the consumer protocol (KIP-848) in which members of the classic protocol take part as well.

It is made of a classic group when the first member of the consumer protocol joins (`adopt`), and can be made one again when
only members of the classic protocol are left (`is_all_classic`). A member of either protocol has an epoch, a target and
partitions; to one of the classic protocol its epoch is the generation. Such a member hears from a heartbeat that it has to
join again: to learn of a new target, to give up partitions, or to get those that others gave up. It is answered at once:
JoinGroup tells it its generation, SyncGroup its partitions, and nobody leads. What it says about itself stands in bytes of a
client's own making, which whoever calls this has read (`antiphon.kafka.groups.mixed`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import (
    AWAY_EPOCH,
    NO_PLACES,
    Catalog,
    ClassicPart,
    GroupRow,
    Member,
    MemberState,
    Places,
    Refused,
)


class ClassicJoin(NamedTuple):
    """A JoinGroup request.

    Attributes:
        member_id: empty where it does not have one yet. new_id: the one that it gets then.
        owned: the partitions that it says it has; none where its assignors give up everything before they join.
    """

    member_id: str
    new_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    rack_id: str | None
    topics: tuple[str, ...]
    owned: Places
    classic: ClassicPart


class ClassicBeat(NamedTuple):
    """Who asks, in Heartbeat and SyncGroup, and in which generation."""

    member_id: str
    instance_id: str | None
    generation: int


@dataclass(slots=True)
class MixedGroup(ConsumerGroup):
    """See the module's text. What a step answers holds when the rows that it changed are stored, as in ConsumerGroup."""

    # -- between the protocols --------------------------------------------------------------------------------------

    def adopt(self, now_ms: int, generation: int, members: Iterable[Member]) -> None:
        """Take over the members of a classic group of this generation, with what they have.

        A partition that two members say they have stays with the first; one that a member has to give up goes after those
        that somebody may use. All of them have to join again, as an epoch begins when the first other member comes.
        """
        epoch = max(generation, self.row.epoch)
        self._put_row(GroupRow(epoch, epoch))
        found = list(members)
        taken: set[tuple[bytes, int]] = set()
        for place, member in enumerate(found):
            found[place] = msgspec.structs.replace(member, assigned=member.assigned - taken)
            taken |= member.assigned
        for member in found:
            revoking = member.revoking - taken
            taken |= revoking
            state = MemberState.UNREVOKED if revoking else MemberState.STABLE
            kept = msgspec.structs.replace(
                member, epoch=generation, previous_epoch=generation, state=state, revoking=revoking
            )
            self._put(kept)
            self._put_target(kept.member_id, kept.assigned)
            if kept.instance_id is not None:
                self._static[kept.instance_id] = kept.member_id
            self._time(now_ms, kept)

    # -- requests of the classic protocol ---------------------------------------------------------------------------

    def join(self, now_ms: int, asked: ClassicJoin, catalog: Catalog) -> Member | Refused:
        """JoinGroup: the member as it is now; its generation is its epoch."""
        refused = _refuse_protocols(self.members.values(), asked)
        if refused is not None:
            return refused
        found = self._admit_classic(asked)
        if isinstance(found, Refused):
            return found
        is_new = found.member_id not in self.members
        member = msgspec.structs.replace(
            found,
            rack_id=asked.rack_id,
            client_id=asked.client_id,
            client_host=asked.client_host,
            rebalance_ms=asked.rebalance_ms,
            topics=tuple(sorted(set(asked.topics))),
            regex=None,
            assignor=None,
            classic=asked.classic,
        )
        self._put(member)
        self._forget_regexes()
        after = self._advance(now_ms, found, member, asked.owned, catalog, is_new=is_new)
        self._rejoins[after.member_id] = now_ms + max(after.rebalance_ms, 1)  # by then it has to sync
        return after

    def sync(
        self, now_ms: int, asked: ClassicBeat, protocol_type: str | None, protocol: str | None
    ) -> Places | Refused:
        """SyncGroup: the partitions that it may use. `protocol`: the one that JoinGroup told it, where it says that."""
        member = self._known(asked)
        if isinstance(member, Refused):
            return member
        if protocol_type not in {None, "consumer"} or protocol not in {None, protocol_of(member)}:
            return Refused.OTHER_PROTOCOLS
        self._time(now_ms, member, was=member)
        if self.row.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._rejoins.setdefault(member.member_id, now_ms + max(member.rebalance_ms, 1))
            return Refused.REJOIN
        self._rejoins.pop(member.member_id, None)
        return member.assigned

    def beat(self, now_ms: int, asked: ClassicBeat, catalog: Catalog) -> Refused | None:
        """Heartbeat; REJOIN calls it to join again."""
        member = self._known(asked)
        if isinstance(member, Refused):
            return member
        self._time(now_ms, member, was=member)
        self._follow(catalog, changed=False)
        if member.epoch == self.row.epoch and member.state is not MemberState.UNREVOKED:
            is_free = self._is_free_for(member.member_id)
            target = self.targets.get(member.member_id, NO_PLACES)
            if member.state is MemberState.STABLE or not all(is_free(place) for place in target):
                return None
        self._rejoins.setdefault(member.member_id, now_ms + max(member.rebalance_ms, 1))
        return Refused.REJOIN

    def check_classic(self, asked: ClassicBeat) -> Refused | None:
        """May this member commit offsets, or is somebody else in its instance's place? Of either protocol."""
        if asked.instance_id is not None and asked.generation >= 0:
            known = self._static.get(asked.instance_id)
            holder = self.members.get(known or "")
            is_mixed = holder is not None and (holder.classic is not None or holder.epoch != AWAY_EPOCH)
            if is_mixed and known != asked.member_id:
                return Refused.FENCED_INSTANCE
        return self.check_offsets(asked.member_id, asked.generation)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _admit_classic(self, asked: ClassicJoin) -> Member | Refused:
        """The member as it was: one who joins begins with nothing."""
        known = self._static.get(asked.instance_id) if asked.instance_id is not None else None
        if known is not None:
            if known == asked.member_id:
                member = self.members[known]
                return member if member.classic is not None else Refused.UNKNOWN_MEMBER
            if asked.member_id or asked.new_id in self.members:
                return Refused.FENCED_INSTANCE
            return self._taken_over(self.members[known], asked.new_id)
        found = self.members.get(asked.member_id)
        if found is not None:
            is_own = found.classic is not None and found.instance_id == asked.instance_id
            return found if is_own else Refused.UNKNOWN_MEMBER
        if len(self.members) >= self.bounds.max_size:
            return Refused.FULL
        if asked.instance_id is not None:
            if asked.member_id:
                return Refused.UNKNOWN_MEMBER  # its place is gone; it comes back without an id
            self._static[asked.instance_id] = asked.new_id
        return Member(asked.member_id or asked.new_id, instance_id=asked.instance_id)

    def _known(self, asked: ClassicBeat) -> Member | Refused:
        """A member of the classic protocol, in its generation."""
        if asked.instance_id is not None and self._static.get(asked.instance_id) not in {
            None,
            asked.member_id,
        }:
            return Refused.FENCED_INSTANCE
        member = self.members.get(asked.member_id)
        if member is None or member.classic is None:
            return Refused.UNKNOWN_MEMBER
        return member if member.epoch == asked.generation else Refused.OLD_GENERATION


def is_all_classic(group: ConsumerGroup) -> bool:
    """Are there members, and all of the classic protocol?"""
    return bool(group.members) and all(each.classic is not None for each in group.members.values())


def generation_of(group: ConsumerGroup) -> int:
    """The newest epoch that a member has: members in it go on with it when the group becomes a classic one."""
    return max((each.epoch for each in group.members.values()), default=0)


def _refuse_protocols(members: Iterable[Member], asked: ClassicJoin) -> Refused | None:
    """One protocol is known to all members of the classic protocol: they may be a group of their own one day."""
    offers = [
        {name for name, _ in each.classic.protocols}
        for each in members
        if each.classic is not None
        and each.member_id != asked.member_id
        and (asked.instance_id is None or each.instance_id != asked.instance_id)
    ]
    own = {name for name, _ in asked.classic.protocols}
    return None if own.intersection(*offers) else Refused.OTHER_PROTOCOLS


def protocol_of(member: Member) -> str:
    """The protocol that a member of the classic protocol follows here: the first that it named."""
    return "" if member.classic is None or not member.classic.protocols else member.classic.protocols[0][0]


def common_protocol(members: Sequence[Member]) -> str | None:
    """One that all of these know, if there is one: that which most of them name before the others that all know.

    Of those that as many want, the one that the first member names first.
    """
    offers = [[name for name, _ in each.classic.protocols] for each in members if each.classic is not None]
    common = set(offers[0]).intersection(*offers[1:]) if offers else set()
    if not common:
        return None
    votes = {name: 0 for name in offers[0] if name in common}
    for names in offers:
        votes[next(name for name in names if name in common)] += 1
    return max(votes, key=lambda name: votes[name])
