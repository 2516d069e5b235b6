"""Mutants of changes of the voters of `__cluster`, and of the recovery of a cluster that lost most of them."""

from typing import Any, Final

from antiphon.node import own_voter
from antiphon.node.agent import ClusterAgent
from antiphon.node.known_voters import KnownVoters
from antiphon.node.partition_opener import PartitionOpener
from antiphon.replication.membership import Membership
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM

_CHANGES: Final[dict[str, Any]] = {
    **CALM,
    "nodes": 5,
    "fault_ms": 10_000,
    "fault_every_ms": 400,
    "voters_weight": 4,
    "kill_weight": 1,
    "power_weight": 1,
    "cut_weight": 1,
    "operations_per_s": 100,
}
"""The voters change while nodes end and are cut off."""

_LOST_VOTERS: Final[dict[str, Any]] = {
    **_CHANGES,
    "fault_lasts_ms": 2_000,
    "power_weight": 0,
    "voters_weight": 1,
    "voter_gone_weight": 3,
}
"""Voters lose their disks, and are replaced."""

_RECOVERIES: Final[dict[str, Any]] = {
    **CALM,
    "nodes": 5,
    "replicas": 5,
    "fault_ms": 15_000,
    "fault_every_ms": 1_500,
    "fault_lasts_ms": 2_000,
    "most_voters_gone_weight": 2,
    "kill_weight": 1,
    "cut_weight": 1,
    "operations_per_s": 100,
}
"""All voters but one are lost, and the cluster goes on from that one."""

VOTER_MUTANTS: Final = (
    ClusterMutant(
        "voter-counts-before-it-votes",
        "a node that does not vote yet when it is asked becomes a voter as soon as it has the log",
        Edit(
            Membership,
            "_next",
            "if node not in members.voting and not (self.has_caught_up(node) and self._votes(node)):",
            "if node not in members.voting and not self.has_caught_up(node):",
        ),
        options=_LOST_VOTERS,
        quick=True,
        first_seed=29,
    ),
    ClusterMutant(
        "voters-not-noted",
        "a node goes by the voters of its configuration when it starts, whoever they were when it ended",
        Edit(KnownVoters, "__init__", "self.note = read_note(disk, self._path)", "self.note = None"),
        options=_CHANGES,
        quick=True,
        first_seed=11,
    ),
    ClusterMutant(
        "new-voter-remembers",
        "an empty directory counts as one that never voted, because the metadata says that the node votes",
        Edit(
            PartitionOpener,
            "recover_cluster_shard",
            "is_founding = self._directory.identity.bootstrap and record is None",
            "is_founding = self._directory.identity.bootstrap or record is not None",
        ),
        options=_LOST_VOTERS,
        first_seed=7,
    ),
    ClusterMutant(
        "former-voter-asks-its-leader",
        "who votes no more takes the last leader that its replica knew for the coordinator for ever",
        Edit(ClusterAgent, "coordinator", "(host.state.term, leader) != self._in_vain", "leader is not None"),
        options={**_LOST_VOTERS, "voters_weight": 4, "voter_gone_weight": 1, "kill_weight": 3},
        first_seed=13,
    ),
    ClusterMutant(
        "old-voter-stays",
        "a voter that hears of a recovery goes on with the log that it had before",
        Edit(
            own_voter,
            "is_of_the_past",
            "return log.log_end > 0 and log.hard_state.term < mark",
            "return False",
        ),
        options=_RECOVERIES,
        quick=True,
        first_seed=11,
    ),
    ClusterMutant(
        "forgotten-voter-is-told-nothing",
        "a replica that asks for terms because it forgot its own is taken for one of before a recovery",
        Edit(own_voter, "is_told_nothing", "message.floor < 0", "not message.term"),
        options=_RECOVERIES,
    ),
)
