"""The topic of a run: how it is replicated, in the words that an operator would use."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from antiphon.coordination.profiles import Replication, replication_of
from antiphon.replication.commit_rule import CommitKind

if TYPE_CHECKING:
    from antiphon.replication.config import ReplicaConfig
    from antiphon.simulation.options import SimulationOptions

LIVE_LAG_ENTRIES = 20
LIVE_LAG_MS = 200


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Profile and settings of the topic that a world creates."""

    profile: str
    config: dict[str, str]
    tick_ms: int

    @classmethod
    def of(cls, options: "SimulationOptions") -> "TopicOptions":
        """The topic of a world."""
        config = {"commit": options.commit}
        if options.commit == "live":
            config["min.live"] = str(options.min_live)
            config["live.lag.max"] = str(LIVE_LAG_ENTRIES)
            config["live.lag.ms"] = str(LIVE_LAG_MS)
            config["unclean.leader.election.enable"] = str(options.unclean).lower()
        if options.commit == "local" or options.profile == "tarantool":
            config["accept.split.brain"] = "true"
        if options.commit_marker:
            config["commit.marker"] = "record"
        if options.ack_every > 1:
            config["ack.every"] = str(options.ack_every)
        profile = ("oxia" if options.has_coordinator else "raft") if options.has_tables else options.profile
        return cls(profile, config, options.tick_ms)

    @property
    def config_anywhere(self) -> dict[str, str]:
        """Settings that can be kept with any number of replicas."""
        fewer = {name: value for name, value in self.config.items() if name != "min.live"}
        return fewer if fewer["commit"] == "live" else {**fewer, "commit": "quorum"}

    def may_lose(self, replicas: int) -> bool:
        """Does the rule acknowledge what an election can lose (S4.28)?"""
        rule = self.replication.commit
        return rule.kind is CommitKind.LOCAL or (rule.kind is CommitKind.AT_LEAST and 2 * rule.k <= replicas)

    @property
    def replication(self) -> Replication:
        """The same as one value."""
        return replication_of(self.profile, self.config)

    def replica_config(self, small: "ReplicaConfig") -> "ReplicaConfig":
        """What its replicas are told at the start."""
        options = self.replication
        return replace(
            small,
            commit=options.commit,
            min_live=options.min_live,
            live_lag_entries_max=options.live_lag_max,
            live_lag_ticks=max(1, options.live_lag_ms // self.tick_ms),
            commit_marker=options.commit_marker == "record",
            ack_every=options.ack_every,
            unclean=options.unclean,
        )
