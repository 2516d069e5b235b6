"""Readers that have read all there is of one shard's log, and wait for more."""

from collections.abc import Callable

from antiphon.partition.failures import report_request
from antiphon.partition.state import PartitionState


class WaitingReaders:
    """See the module's text. `followers`: where each waits, whether for records that are not committed, and its call."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.followers: dict[int, tuple[int, bool, Callable[[], None]]] = {}

    def follow(self, key: int, offset: int, isolation: str, wake: Callable[[], None]) -> bool:
        """Call `wake` once, when there is data at `offset`. False: there is already, or there is nothing to wait for."""
        state = self._state
        uncommitted = (isolation or state.default_isolation) == "uncommitted"
        end = state.log.log_end if uncommitted else state.high_watermark
        if offset < end or not state.is_serving:
            return False
        self.followers[key] = (offset, uncommitted, wake)
        return True

    def unfollow(self, key: int) -> None:
        """Forget about it."""
        self.followers.pop(key, None)

    def wake(self, *, committed: bool) -> None:
        """Wake who follows the log: beyond what is committed, or after a commit as far as that goes, too."""
        state = self._state
        log_end, high_watermark = state.log.log_end, state.high_watermark
        found = [
            key
            for key, (offset, uncommitted, _) in self.followers.items()
            if offset < (log_end if uncommitted else high_watermark if committed else -1)
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
