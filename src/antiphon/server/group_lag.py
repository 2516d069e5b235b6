"""How far the groups that a node coordinates are behind, for its metrics.

To know that takes reads of `__groups` and questions to the leaders of what the groups read. So it is looked at beside the
loop's other work, and only where somebody reads the metrics: what these show is as of the time that they were read before,
and nothing at first.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError
from antiphon.node.metrics import Labelled

if TYPE_CHECKING:
    from antiphon.node.metrics import NodeMetrics
    from antiphon.transactions.told_groups import GroupTeller

Spawn = Callable[[Coroutine[Any, Any, Any]], Any]

NAME: Final = "antiphon_group_lag_records"
TEXT: Final = (
    "Records that a group which this node coordinates has before it, of the 100 groups that have most"
)
GROUPS_TOLD_MAX: Final = 100
AGE_S: Final = 10.0  # nobody looks again before
GONE_S: Final = 120.0  # what is older is not shown: the group may have another coordinator by now


class GroupLag:
    """See the module's text. `spawn` runs a look in a task of the node's."""

    def __init__(self, teller: "GroupTeller", spawn: Spawn) -> None:
        self._teller = teller
        self._spawn = spawn
        self._found: dict[str, float] = {}
        self._looked_s = -GONE_S
        self._looking = False

    def read(self) -> dict[str, float]:
        """By group, as of the last look; the next one begins where that is some seconds ago."""
        try:
            age_s = asyncio.get_running_loop().time() - self._looked_s
        except RuntimeError:
            return self._found  # somebody reads beside the node's loop, who cannot begin anything
        if age_s >= AGE_S and not self._looking:
            self._looking = True
            self._spawn(self._look())
        return self._found if age_s < GONE_S else {}

    async def _look(self) -> None:
        try:
            lags = await self._teller.lags()
        except AntiphonError:
            return  # the table moves, or has no leader: what was known grows older
        finally:
            self._looking = False
        most = sorted(lags.items(), key=lambda one: (-one[1], one[0]))[:GROUPS_TOLD_MAX]
        self._found = {group: float(lag) for group, lag in most}
        self._looked_s = asyncio.get_running_loop().time()


def add_group_lag(metrics: "NodeMetrics", teller: "GroupTeller", spawn: Spawn) -> None:
    """Add it to what the node counts."""
    metrics.labelled[NAME] = Labelled(TEXT, "group", GroupLag(teller, spawn).read)
