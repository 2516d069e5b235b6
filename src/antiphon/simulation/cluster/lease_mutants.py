"""Mutants of leases for reads: each lets an old leader answer from what a newer one has changed."""

from typing import Any, Final

from antiphon.replication.appointment import Appointment
from antiphon.replication.follower import FollowerSide
from antiphon.replication.lease import LeaderLease
from antiphon.replication.promise import Promise
from antiphon.replication.voting import VoteElection
from antiphon.simulation.cluster import world_options
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM

LEASED: Final[dict[str, Any]] = {
    **CALM,
    "appenders": 0,
    "putters": 0,
    "leased_clients": 6,
    "lease_weight": 1,
    "fault_ms": 15_000,
    "fault_every_ms": 1_200,
    "fault_lasts_ms": 1_000,
    "delay_us": (100, 600),
}
"""Leaders of a table with leases are cut off while others are elected."""

_HELD: Final = "if state.holds_back(sender, message):"

LEASE_MUTANTS: Final = (
    ClusterMutant(
        "lease-from-the-answer",
        "a leader counts its lease from when it was promised, and not from when it asked for it",
        (
            Edit(LeaderLease, "note_time", "self.lease_ms * US_PER_MS // STEPS", "0"),
            Edit(LeaderLease, "_sent_us", "first <= round_", "True"),
        ),
        options=LEASED,
        first_seed=9_461_004,
    ),
    ClusterMutant(
        "lease-forgotten-at-a-restart",
        "a replica that was restarted helps to elect, though it had promised not to",
        Edit(Promise, "__init__", "self.until_us = until_us", "self.until_us = 0"),
        options=LEASED,
        first_seed=9_461_011,
    ),
    ClusterMutant(
        "lease-voters-vote",
        "replicas vote for others, and for themselves, while they are bound to the leader that there is",
        (
            Edit(VoteElection, "on_request_vote", _HELD, "if False:"),
            Edit(VoteElection, "_is_free", "not self._state.promise.holds(campaign.term)", "True"),
            Edit(
                VoteElection,
                "_vote",
                "granted and not message.transfer and state.holds_back(sender, message)",
                "False",
            ),
        ),
        profile="raft",
        options=LEASED,
        first_seed=9_461_000,
    ),
    ClusterMutant(
        "lease-promises-a-term",
        "a replica answers NewTerm while it is bound to the leader that there is",
        Edit(Appointment, "on_new_term", _HELD, "if False:"),
        options=LEASED,
        first_seed=9_461_000,
        quick=True,
    ),
    ClusterMutant(
        "lease-of-too-few",
        "a leader takes too few for enough: itself alone, of three",
        Edit(LeaderLease, "until_us", "self._tracker.confirmed(bound)", "max(bound)"),
        options=LEASED,
        first_seed=9_461_000,
    ),
    ClusterMutant(
        "lease-is-not-kept",
        "a follower says that it has promised, and is not bound",
        Edit(Promise, "give", "self.until_us = max(", "max("),
        options=LEASED,
        first_seed=9_461_001,
    ),
    ClusterMutant(
        "lease-of-an-unbound-follower",
        "a follower that was asked says that it has promised, whatever its own settings are",
        Edit(
            FollowerSide,
            "_note_round",
            "self._promise.give(self._term, message.lease_ms)",
            "message.lease_ms",
        ),
        options=LEASED,
        first_seed=9_461_001,
    ),
    ClusterMutant(
        "lease-clocks-beyond-the-bound",
        "nodes' clocks run further apart than leases allow for",
        ((world_options, "LEASE_SKEW_PPM", 400_000),),
        options={**LEASED, "clock_skew_ppm": 400_000},
        first_seed=9_461_014,
        rare=True,
    ),
)
