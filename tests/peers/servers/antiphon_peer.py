"""Antiphon itself, as `antiphon up` starts it."""

import sys
from collections.abc import Sequence
from pathlib import Path

import antiphon
from antiphon.tools.local_cluster import LocalCluster
from tests.peers.servers.peer import KAFKA, TABLE


class RunningAntiphon:
    """The nodes of one `antiphon up`."""

    def __init__(self) -> None:
        self._cluster = LocalCluster.start()
        self.addresses = {KAFKA: self._cluster.kafka, TABLE: self._cluster.native}

    @property
    def pids(self) -> Sequence[int]:
        """The nodes' processes."""
        return [node.pid for node in self._cluster.nodes.values()]

    def stop(self) -> None:
        """Stop the nodes and remove what they wrote."""
        self._cluster.stop()


class Antiphon:
    """Three nodes with the settings of a fresh cluster."""

    def __init__(self) -> None:
        self.name = "antiphon"
        self.title = "Antiphon"
        self.settings = f"{antiphon.__version__}; replicas 3, flush = always; tables of 4 shards"
        self.clients: dict[str, tuple[str, ...]] = {
            KAFKA: (sys.executable, "-m", "tests.peers.clients.kafka"),
            TABLE: (sys.executable, "-m", "tests.peers.clients.table"),
        }
        self.lacks: dict[str, str] = {}

    def get(self, cache: Path) -> None:
        """It is here already."""

    def start(self) -> RunningAntiphon:
        """Three nodes, ready."""
        return RunningAntiphon()
