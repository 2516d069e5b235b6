"""Upkeep of all replicas of a node: a few in each turn of the event loop, so that thousands of them hold nobody up."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.node.context import NodeContext
    from antiphon.partition.partition import Partition

AT_ONCE: Final = 64  # replicas: about half a millisecond


class Round:
    """Looks at every replica that works, once in a round.

    Args:
        node: the node.
        look: is called with each.
        done: is called at the end of a round.
    """

    def __init__(
        self,
        node: "NodeContext",
        look: "Callable[[Partition], None]",
        done: "Callable[[], None] | None" = None,
    ) -> None:
        self._node = node
        self._look = look
        self._done = done
        self._left: list[int] = []  # the next one last

    def begin(self) -> None:
        """Begin a round, and look at the first ones now. Harmless while one is under way."""
        if not self._left:
            self._left = [*reversed(self._node.hosts)]
            self._piece()

    def _piece(self) -> None:
        hosts, left = self._node.hosts, self._left
        if self._node.stopping:
            left.clear()
            return
        try:
            for _ in range(min(AT_ONCE, len(left))):
                host = hosts.get(left.pop())
                if host is not None and host.state.failed is None and not host.state.closed:
                    self._look(host)
        finally:  # what goes wrong with one replica is told, and the others still have their turn
            if left:
                self._node.turn.pieces.add(self, self._piece)
        if not left and self._done is not None:
            self._done()
