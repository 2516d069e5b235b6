"""What a node does about its own disk while it runs: it reads it (`scrub`), tells of what is wrong, has it mended, and has
logs compacted.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon import system
from antiphon.model.findings import OF_NODE, UNHEALTHY
from antiphon.node.audit_notes import AuditNotes
from antiphon.node.compaction import LogCleaner
from antiphon.node.findings import Findings, Noted
from antiphon.node.first_seen import FirstSeen
from antiphon.node.gauges import add_compaction_gauges, add_scrub_gauges
from antiphon.node.logs import lost_lines
from antiphon.node.mending import Mending
from antiphon.node.reserve import Reserve
from antiphon.node.scrub import Scrub

if TYPE_CHECKING:
    from antiphon.log.wal import Wal
    from antiphon.model.requests import StatusReply
    from antiphon.node.context import NodeContext
    from antiphon.node.mending import ClosedReplicas


JOINS_IN_S: Final = 5.0  # a start takes less
ALONE: Final = "not_joined"
NO_LOG: Final = "log_not_written"


class DiskCare:
    """See the module's text. `shards`: those replicas that do not open, known once the node is made.

    Attributes:
        findings: what is wrong.
        audit: what audits have found here.
        scrub: reads what is on the disk.
        cleaner: compacts logs.
    """

    def __init__(
        self,
        node: "NodeContext",
        wal: "Wal",
        shards: Callable[[], "ClosedReplicas"],
        joined: Callable[[], bool],
    ) -> None:
        self._node = node
        self._joined = joined
        self._began_s = node.now_s()
        self._lost_lines = lost_lines()
        self._reserve = Reserve(node, wal)
        self._first_seen = FirstSeen(node.disk, str(node.config.dir))
        self.findings = Findings(node.hosts, node.suspects, shards, wal, self._first_seen)
        self.audit = AuditNotes(node.disk, str(node.config.dir), self.findings, node.loop)
        self._mending = Mending(node, shards, self.findings)
        self.scrub = Scrub(node, self.findings, self._mending)
        self.cleaner = LogCleaner(node, wal)

    def start(self) -> None:
        """Begin; all of it ends with the node."""
        self.audit.start()
        add_scrub_gauges(self._node.metrics, self.findings, self.scrub)
        add_compaction_gauges(self._node.metrics, self.cleaner)
        self._node.spawn(self.scrub.run())
        self._node.spawn(self.cleaner.run())
        self._node.spawn(self._mending.run(self.scrub.read_again))

    def settings_changed(self) -> None:
        """What is done for the disk goes by other settings from now on."""
        self.scrub.settings_changed()
        self.cleaner.pauses.end()

    def look(self) -> None:
        """Now and then: what is wrong with this node, and what room is left?"""
        self._reserve.look()
        node = self._node
        if self._joined():
            self.findings.take_back(OF_NODE, ALONE)
        elif node.now_s() - self._began_s > JOINS_IN_S:
            lost = ", ".join(map(str, sorted(node.lost_peers()))) or "none"
            what = f"the cluster does not count on this node; nodes that it does not reach: {lost}"
            do = "start the other nodes; where they run, node.log says why they and this one do not come together"
            self.findings.note(Noted(ALONE, OF_NODE, what, do, UNHEALTHY))
        gone = lost_lines()
        if gone > self._lost_lines:
            what = f"{gone} lines of node.log could not be written"
            self.findings.note(
                Noted(NO_LOG, OF_NODE, what, "make room, and let the node's user write its directory")
            )
        else:
            self.findings.take_back(OF_NODE, NO_LOG)
        self._lost_lines = gone
        self.findings.look()
        news = self._first_seen.news(system.wall_ms())
        if news is not None:
            node.loop.run_in_executor(None, self._first_seen.write, news)

    def add_to(self, status: "StatusReply") -> "StatusReply":
        """The node's status with what is known of its disk."""
        return msgspec.structs.replace(status, findings=self.findings.all, scrub=self.scrub.status)
