"""What the state machines of all kinds of shards have in common, for the partition that drives one."""

from collections.abc import Sequence
from typing import Any, Protocol

from antiphon.replication.progress import FollowerStatus
from antiphon.replication.replica_state import Role


class HasEnd(Protocol):
    """A log, or a replica's idea of it."""

    @property
    def log_end(self) -> int:
        """Next offset to write."""


class ReplicaView(Protocol):
    """See the module's text. Offsets are exclusive ends."""

    @property
    def ends(self) -> HasEnd:
        """What has `log_end` at hand; the same object for good."""

    @property
    def role(self) -> Role:
        """What the replica is in its term."""

    @property
    def term(self) -> int:
        """The term that the replica is in."""

    @property
    def ready(self) -> bool:
        """May clients be served, where the replica leads?"""

    @property
    def leader(self) -> int | None:
        """The node that leads, as far as is known."""

    @property
    def damaged(self) -> bool:
        """Has the log lost something that it has not got back?"""

    @property
    def log_start(self) -> int:
        """First offset that is in the log."""

    @property
    def log_end(self) -> int:
        """Next offset to write, appends underway included."""

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed, or not known to be."""

    @property
    def needs_tick(self) -> bool:
        """Is anything outstanding that only `tick` can mend?"""

    def followers(self) -> tuple[FollowerStatus, ...]:
        """The other replicas, as this one knows them."""

    def persisted(self, write_id: int) -> Sequence[Any]:
        """Event: every write up to `write_id` is durable."""

    def request_read(self, token: int, now_us: int | None = None) -> Sequence[Any]:
        """Event: a read asks whether this replica may still answer. The time is told where there are leases."""

    def peer_connected(self, node: int) -> Sequence[Any]:
        """Event: a connection to `node` is there."""

    def peer_lost(self, node: int) -> Sequence[Any]:
        """Event: the connection to `node` broke."""

    def tick(self, now_us: int | None = None) -> Sequence[Any]:
        """Event: one tick of time passed. The time is told where there are leases."""

    def storage_failed(self) -> Sequence[Any]:
        """Event: a write or sync failed; the replica stops for good."""
