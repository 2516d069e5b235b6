"""When the node reads no more from its connections: while it has too much appended, or too much waits for its disk.

Two bounds, each with its own hold. Over `append_in_flight` bytes that clients appended and that are not committed, the
listeners read no more of clients. Over `wal_backlog` bytes that wait for the disk, nothing is read that brings entries,
from other nodes either. Reading goes on at half of the bound, so that it does not flutter.

What other disks have is committed, so a leader whose own disk is slow may have much for it that is in flight no more.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.gateway.intake import Intake
    from antiphon.log.wal import Wal
    from antiphon.node.config import Limits
    from antiphon.node.peer_network import PeerNetwork


class BackPressure:
    """See the module's text.

    Attributes:
        intakes: the listeners.
        in_flight_bytes: appended by clients here and not committed.
    """

    def __init__(self, limits: "Limits", wal: "Wal", network: "PeerNetwork") -> None:
        self.intakes: list[Intake] = []
        self.in_flight_bytes = 0
        self._limits = limits
        self._wal = wal
        self._network = network
        self._holds_clients = False
        self._holds_disk = False

    def in_flight(self, change_bytes: int) -> None:
        """See PartitionServices."""
        self.in_flight_bytes += change_bytes
        if self._wal.backlog_bytes >= self._limits.wal_backlog and change_bytes > 0:
            self.entries_came()
        limit = self._limits.append_in_flight
        if not self._holds_clients and self.in_flight_bytes > limit:
            self._holds_clients = True
            for intake in self.intakes:
                intake.hold_clients()
        elif self._holds_clients and self.in_flight_bytes < limit // 2:
            self._holds_clients = False
            for intake in self.intakes:
                intake.release_clients()

    def entries_came(self) -> None:
        """A client or another node sent something that may be for the disk."""
        if self._wal.overloaded and not self._holds_disk:
            self._holds_disk = True
            self._wal.progressed = self.disk_progressed
            for intake in self.intakes:
                intake.hold_disk()
            self._network.hold_disk()

    def disk_progressed(self) -> None:
        """Operations of the WAL were finished."""
        if self._holds_disk and self._wal.backlog_bytes < self._limits.wal_backlog // 2:
            self._holds_disk = False
            self._wal.progressed = None
            for intake in self.intakes:
                intake.release_disk()
            self._network.release_disk()
