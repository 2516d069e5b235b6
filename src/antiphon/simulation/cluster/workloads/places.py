"""Connections of one user, whose quota says how many he may have at a node: at all listeners together."""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.errors import OverloadedError
from antiphon.model.quotas import CONNECTIONS
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.node_clocks import ClockedWorkload
from antiphon.simulation.cluster.workloads.shown_logins import AnyAsker, log_in_by
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.security.account import Account
    from antiphon.simulation.runtime.process import Process
    from antiphon.simulation.runtime.transport import Transport

PLACES: Final = 3  # connections that the user may have at a node
LEFT_S: Final = 0.5  # of a node's time, after which a connection that has ended has left its place


class Places:
    """The connections of a user with a quota, all of one process, and what nodes may think of them."""

    def __init__(self, owner: ClockedWorkload, process: "Process", account: "Account", shard_id: int) -> None:
        self._owner = owner
        self._shard_id = shard_id
        self._process = process
        self._account = account
        self.held: list[tuple[int, AnyAsker]] = []  # by node
        self._made: dict[
            Transport, tuple[int, int, float]
        ] = {}  # node, its process, when it was seen to be over

    async def open_one(self, node: int, way: str) -> None:
        """Log in once more, by one of `WAYS`, and judge what comes of it."""
        owner, user = self._owner, self._account.user
        has_room = self._may_be_open(node) < PLACES
        known = self._knows_quota(node)
        try:
            found = await log_in_by(self._process, owner.host(node), self._account, way)
        except OverloadedError as error:
            owner.outcomes[f"places-refused-{way}"] += 1
            require(
                not has_room and f"may have {PLACES} (quota {CONNECTIONS})" in error.message,
                "place",
                f"node {node} has no place for {user} ({way}): {error.message}",
            )
            return
        except NoAnswerError:
            owner.outcomes[f"places-refused-{way}"] += way == "kafka" and not has_room
            return
        owner.outcomes[f"places-taken-{way}"] += 1
        self.held.append((node, found))
        here = [one for at, one in self.held if at == node and not one.is_over]
        if known and len(here) > PLACES:
            answered = await asyncio.gather(*(one.ask(self._shard_id) for one in here))
            require(
                sum(answered) <= PLACES,
                "place",
                f"node {node} answers on {sum(answered)} connections of {user} (the last: {way}), who may have {PLACES}",
            )

    def _knows_quota(self, node: int) -> bool:
        """Has the node known of the quota since before this?"""
        history, user = self._owner.history, self._account.user
        since = history.moment(node)
        return since is not None and not history.could(since, lambda known: user not in known.quotas)

    def _may_be_open(self, node: int) -> int:
        """At most so many the node counts as open."""
        owner = self._owner
        clocks, host = owner.clocks, owner.cluster.machines[node].host
        for one in owner.cluster.network.transports():
            if one.process is self._process and one not in self._made and one.remote[0] == host:
                self._made[one] = node, clocks.starts(node), -1.0
        count = 0
        for one, (at, starts, over_s) in list(self._made.items()):
            if at != node:
                continue
            if starts != clocks.starts(node):
                del self._made[one]
            elif over_s < 0.0 and one.other.is_closing():
                self._made[one] = at, starts, clocks.ran_s(node)
                count += 1
            elif over_s < 0.0 or clocks.ran_s(node) - over_s < LEFT_S:
                count += 1
        return count

    async def close_one(self, draw: "Random") -> None:
        """Hang up on one."""
        _, found = self.held.pop(draw.randrange(len(self.held)))
        await found.close()

    async def close_all(self) -> None:
        """Hang up on all."""
        while self.held:
            await self.held.pop()[1].close()
