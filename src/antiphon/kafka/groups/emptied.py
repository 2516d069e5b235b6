"""Since when nobody is in the groups of the classic protocol that this node coordinates and whose members it has seen go."""

from typing import Final

GROUPS_MAX: Final = 20_000


class EmptiedGroups:
    """Times are of the event loop, in ms. Of too many groups only the last moment is known at which one became empty."""

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}
        self._floor_ms: int | None = None

    def note(self, group_id: str, now_ms: int) -> None:
        """The last member is gone."""
        if group_id not in self._since_ms and len(self._since_ms) >= GROUPS_MAX:
            self._since_ms.clear()
            self._floor_ms = now_ms
        self._since_ms[group_id] = now_ms

    def since_ms(self, group_id: str) -> int | None:
        """When the last member went, or later; None: no member of the group was seen."""
        return self._since_ms.get(group_id, self._floor_ms)

    def forget_before(self, before_ms: int) -> None:
        """What is so old makes no difference any more."""
        self._since_ms = {group: at for group, at in self._since_ms.items() if at >= before_ms}
