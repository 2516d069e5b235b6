"""Who is in a consumer group: by member id, by instance id where a member is static, and the ids given out but not used yet.

Members keep the order in which they came: it decides who leads and breaks ties between protocols.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.invariants import invariant
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.types import GroupConfig, Join, Member, protocols_bytes


@dataclass(slots=True)
class GroupMembers:
    """`pending`: ids that were given out, for members to join with -> when they lapse, in ms."""

    by_id: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    _static: dict[str, str] = field(default_factory=dict)  # instance id -> member id

    @property
    def count(self) -> int:
        """Members, and those who were given an id and have yet to join."""
        return len(self.by_id) + len(self.pending)

    def knows(self, member_id: str) -> bool:
        """Is this the id of a member, or of one who has yet to join?"""
        return member_id in self.by_id or member_id in self.pending

    def id_of(self, instance_id: str | None) -> str | None:
        """The member id of a static member; None where there is none."""
        return None if instance_id is None else self._static.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> int:
        """Is this a member, and no other one in its instance's place? An error code."""
        if self.id_of(instance_id) not in {None, member_id}:
            return code.FENCED_INSTANCE_ID
        return code.NONE if member_id in self.by_id else code.UNKNOWN_MEMBER_ID

    def refuse_join(self, config: GroupConfig, protocol_type: str | None, request: Join) -> int:
        """May whoever asks join these, whose protocols are of that type? An error code."""
        if not config.session_ms_min <= request.session_ms <= config.session_ms_max:
            return code.INVALID_SESSION_TIMEOUT
        if not self.knows(request.member_id) and self.count >= config.members_max:
            return code.GROUP_MAX_SIZE_REACHED
        if protocols_bytes(request.protocols) > config.metadata_bytes_max:
            return code.INVALID_REQUEST
        if not request.protocol_type or not request.protocols:
            return code.INCONSISTENT_GROUP_PROTOCOL
        others = [m for m in self.by_id.values() if m.member_id != request.member_id]
        if others and (
            request.protocol_type != protocol_type
            or not common_protocols([m.protocols for m in others] + [request.protocols])
        ):
            return code.INCONSISTENT_GROUP_PROTOCOL
        return code.NONE

    def add(self, member: Member) -> None:
        """Let a member in."""
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        """Let a member go."""
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]

    def rename(self, member: Member, new_id: str) -> None:
        """A static member is known by another id from now on, as the last of all."""
        self.remove(member)
        member.member_id = new_id
        self.add(member)

    def expire_pending(self, now_ms: int) -> None:
        """Forget pending ids whose time is up."""
        for member_id in [known for known, lapses_ms in self.pending.items() if lapses_ms <= now_ms]:
            del self.pending[member_id]

    def expired(self, now_ms: int) -> list[Member]:
        """Members whose session has ended. It does not end while an answer to the member is held back."""
        return [m for m in self.by_id.values() if not m.is_waiting and m.expires_ms <= now_ms]

    def rebalance_ms(self) -> int:
        """The longest time that a member wants to rejoin in."""
        return max((m.rebalance_ms for m in self.by_id.values()), default=0)

    def choose_protocol(self) -> str:
        """Each member votes for its first protocol that all can follow; most votes win, ties go to the earliest."""
        offers = [m.protocols for m in self.by_id.values()]
        common = common_protocols(offers)
        invariant(common, "members without a common protocol are not let in")
        votes = dict.fromkeys(common, 0)
        for protocols in offers:
            votes[next(name for name, _ in protocols if name in votes)] += 1
        return max(votes, key=lambda name: votes[name])


def common_protocols(offers: Sequence[tuple[tuple[str, bytes], ...]]) -> list[str]:
    """Names that every offer has, in the order of the first."""
    return [name for name, _ in offers[0] if all(any(name == n for n, _ in offer) for offer in offers)]
