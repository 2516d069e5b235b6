"""One step of a member on its way to its target: give up, wait until others gave up, take.

A member goes to a new epoch only when it has given up all that the target does not leave it. A place is given to a member
only when no other one has it, or has yet to say that it gave it up. So no two members ever have a place at the same time.
"""

from collections.abc import Callable

import msgspec

from antiphon.coordination.consumer_terms import NO_PLACES, Member, MemberState, Place, Places

IsFree = Callable[[Place], bool]
"""Does no other member hold this place?"""


def reconciled(
    member: Member, target: Places, target_epoch: int, owned: Places | None, is_free: IsFree
) -> Member:
    """The member after a heartbeat. `owned`: what it says that it has; None where it does not say."""
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    if member.state is MemberState.UNREVOKED and (owned is None or owned & member.revoking):
        return member
    kept = member.assigned & target
    revoking = member.assigned - target
    if revoking and (owned is None or owned & revoking):
        return msgspec.structs.replace(member, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    free = frozenset(place for place in target - kept if is_free(place))
    waits = len(kept) + len(free) < len(target)
    return msgspec.structs.replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch if member.epoch != target_epoch else member.previous_epoch,
        state=MemberState.UNRELEASED if waits else MemberState.STABLE,
        assigned=kept | free,
        revoking=NO_PLACES,
    )
