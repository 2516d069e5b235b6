"""Reads of committed records from replicas that do not lead, so that a large job leaves the leaders to the writers.

Any replica has the same committed bytes at the same offsets, up to what it knows to be committed, so the rows are the same
whoever gives them. The replicas of a shard are taken in turn, beginning with another one in each task. One that has not got
the records yet, or not any more, or does not answer is not asked again for a while, and the leader stands in.
"""

import random
import time
from typing import Final

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_link import Answer
from antiphon.client.routing.tries import Shunned
from antiphon.errors import AntiphonError
from antiphon.model.requests import Fetch, Fetched
from antiphon.records.batch import read_header

SHUNNED_S_MIN: Final = 5.0  # and twice as long each time
SHUNNED_S_MAX: Final = 300.0


class ReplicaReads:
    """Stands in for a `Cluster` where a range of one shard is fetched."""

    def __init__(self, cluster: Cluster, shard_id: int) -> None:
        self._cluster = cluster
        self._shard_id = shard_id
        self._shunned: Shunned[int] = Shunned(SHUNNED_S_MIN, SHUNNED_S_MAX)  # nodes
        self._turn = random.randrange(1 << 16)
        self.from_followers = 0
        self.from_leader = 0

    def call(self, call: ShardCall) -> Answer:
        """The answer of a replica that is not the leader if one has what is asked for, else the leader's."""
        request = call.body
        node = self._next_follower()
        if isinstance(request, Fetch) and node is not None:
            answer = self._ask(node, request)
            if answer is not None:
                self.from_followers += 1
                return answer
            self._shunned.failed(node, "it did not have what was asked for", time.monotonic(), random.uniform)
        self.from_leader += 1
        return self._cluster.call(call)

    def _ask(self, node: int, request: Fetch) -> Answer | None:
        isolation = "replica_committed" if request.isolation == "committed" else "replica"
        asked = Fetch(request.shard_id, request.offset, request.max_bytes, 0, isolation)
        try:
            answer = self._cluster.ask(node, asked)
        except AntiphonError:
            return None
        if not isinstance(answer.body, Fetched) or not answer.payload:
            return None
        # A replica never gives more than it knows to be committed, so the end that was planned for is not overstepped.
        return answer if read_header(answer.payload).base_offset <= request.offset else None

    def _next_follower(self) -> int | None:
        now = time.monotonic()
        found = [
            node
            for node in self._cluster.followers_of(self._shard_id)
            if self._shunned.problem(node, now) is None
        ]
        if not found:
            return None
        self._turn += 1
        return found[self._turn % len(found)]
