"""Readers that have read all there is of one shard's log, and wait for more."""

from collections.abc import Callable

from antiphon.model.results import FOLLOWER_COMMITTED, OF_FOLLOWERS
from antiphon.partition.failures import report_request
from antiphon.partition.state import PartitionState


class WaitingReaders:
    """See the module's text. `followers`: where each waits, in which isolation, and its call."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.followers: dict[int, tuple[int, str, Callable[[], None]]] = {}

    def follow(self, key: int, offset: int, isolation: str, wake: Callable[[], None]) -> bool:
        """Call `wake` once, when there is data at `offset`. False: there is already, or there is nothing to wait for.

        What `followers` know is waited for on any replica, everything else on the leader.
        """
        state = self._state
        isolation = isolation or state.default_isolation
        if offset < self._end(isolation) or not self._serves(isolation):
            return False
        self.followers[key] = (offset, isolation, wake)
        return True

    def _serves(self, isolation: str) -> bool:
        state = self._state
        if isolation in OF_FOLLOWERS:
            return state.failed is None and not state.closed
        return state.is_serving

    def _end(self, isolation: str) -> int:
        state = self._state
        if isolation in {"committed", FOLLOWER_COMMITTED}:
            return state.stable_end
        return state.log.log_end if isolation == "uncommitted" else state.high_watermark

    def unfollow(self, key: int) -> None:
        """Forget about it."""
        self.followers.pop(key, None)

    def wake(self, *, committed: bool) -> None:
        """Wake who follows the log: beyond what is committed, or after a commit as far as that goes, too."""
        state = self._state
        ends = {"uncommitted": state.log.log_end}
        if committed:
            ends["committed"] = ends[FOLLOWER_COMMITTED] = state.stable_end
        otherwise = state.high_watermark if committed else -1
        found = [
            key
            for key, (offset, isolation, _) in self.followers.items()
            if offset < ends.get(isolation, otherwise)
        ]
        for key in found:
            entry = self.followers.pop(key, None)
            if entry is not None:
                try:
                    entry[2]()
                except Exception as error:  # noqa: BLE001 - one reader's trouble is not the shard's
                    report_request(state.shard_id, error)

    def wake_all(self) -> None:
        """This replica serves no more: whoever follows it is to ask elsewhere."""
        followers, self.followers = self.followers, {}
        for _, _, wake in followers.values():
            wake()
