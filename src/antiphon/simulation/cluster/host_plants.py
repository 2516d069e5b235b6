"""Bugs to plant in a replica's shell: what it does with its protocol's actions, and what it tells clients when."""

from typing import Final

from antiphon.node.log_writer import LogWriter
from antiphon.node.shard_host import ShardHost
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CALM, CUTS

HOST_PLANTS: Final = (
    ClusterPlant(
        "node-all-staged-is-durable",
        "when a group is durable, the replica is told that all it has staged by then is",
        (Edit(ShardHost, "_tell_written", "self._written_id)", "self.replica._log.write_id)"),),
        options=CALM,
    ),
    ClusterPlant(
        "node-promise-overtakes-append",
        "a promise goes to the disk ahead of appends that wait for the turn's end",
        (Edit(LogWriter, "write", "self.flush()", "pass"),),
        options=CUTS,
    ),
    ClusterPlant(
        "node-keeps-clients-when-deposed",
        "clients of a leader that is deposed wait on, and are answered by what the next leader commits",
        (Edit(ShardHost, "_role_changed", "self._steps.later(self._send_clients_away)", "pass"),),
        options=CUTS,
    ),
)
