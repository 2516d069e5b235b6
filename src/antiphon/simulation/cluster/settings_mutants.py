"""Mutants of settings of nodes that are changed while they run, and of subscriptions to clients' metrics."""

from typing import Any, Final

from antiphon.coordination import checkpoints
from antiphon.coordination import node_settings as recorded
from antiphon.kafka.handlers.metadata import MetadataHandler
from antiphon.model.cluster import MetadataView
from antiphon.node.live_settings import LiveSettings
from antiphon.node.node import Node
from antiphon.node.topic_settings import SettingsBook
from antiphon.server.followed_settings import KeptSettings
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, only

_FEW: Final[dict[str, Any]] = only(operations_per_s=100, settings_operators=2, appenders=1, putters=1)
_SETTINGS: Final[dict[str, Any]] = {**CALM, **_FEW, "fault_ms": 3_000}

_SUBSCRIBERS: Final = {"settings_operators": 0, "subscribers": 1}
_SUBSCRIPTIONS: Final[dict[str, Any]] = {**_SETTINGS, **_SUBSCRIBERS}
_CHECKPOINTED: Final[dict[str, Any]] = {
    **CRASHES,
    **_FEW,
    "checkpoint_records": 1,
    "checkpoint_batch": 16,
    "metadata_segment_bytes": 4096,
}

SETTINGS_MUTANTS: Final = (
    ClusterMutant(
        "settings-are-not-followed",
        "a node that hears of changed settings goes on with those of before",
        Edit(Node, "metadata_changed", "self.settings.take(self.view.node_settings)", "None"),
        options=_SETTINGS,
        quick=True,
    ),
    ClusterMutant(
        "settings-of-listeners-stay",
        "what listeners keep of a node's settings stays as it was when they began",
        Edit(KeptSettings, "changed", "if listener is not None:", "if False:"),
        options=_SETTINGS,
    ),
    ClusterMutant(
        "settings-of-topics-stay",
        "topics that say nothing of their own keep what the node said when they were opened",
        Edit(SettingsBook, "read_again", "self._known.clear()", "pass"),
        options=_SETTINGS,
    ),
    ClusterMutant(
        "settings-for-all-go-first",
        "where anything is set for all nodes, what is set for one of them does not count",
        Edit(
            LiveSettings,
            "values",
            "self.entries,",
            "{node: one for node, one in self.entries.items() if node < 0 or -1 not in self.entries},",
        ),
        options=_SETTINGS,
    ),
    ClusterMutant(
        "settings-forget-the-others",
        "a change takes away what else is set for the same node",
        Edit(
            recorded,
            "alter",
            "changed(before, request.config)",
            "changed(NodeSettings(node, {}), request.config)",
        ),
        options=_SETTINGS,
        quick=True,
    ),
    ClusterMutant(
        "settings-missing-from-checkpoints",
        "a checkpoint leaves out what is set for nodes",
        Edit(checkpoints, "names", "in kinds for", "in kinds if kind != 'settings' for"),
        options=_CHECKPOINTED,
    ),
    ClusterMutant(
        "subscriptions-are-not-followed",
        "a node passes over what the metadata says of subscriptions to clients' metrics",
        Edit(MetadataView, "_put_settings", "put_subscription(self.subscriptions, subscription)", "None"),
        options=_SUBSCRIPTIONS,
        quick=True,
    ),
    ClusterMutant(
        "metrics-always-offered",
        "a node tells Kafka's clients of the APIs for metrics though nobody wants any",
        Edit(MetadataHandler, "_advertised", "if self._gateway.subscriptions or", "if True or"),
        options=_SUBSCRIPTIONS,
        quick=True,
    ),
    ClusterMutant(
        "metrics-never-offered",
        "a node tells nobody of the APIs for metrics, whatever subscriptions there are",
        Edit(MetadataHandler, "_advertised", "if self._gateway.subscriptions or", "if"),
        options=_SUBSCRIPTIONS,
        quick=True,
    ),
    ClusterMutant(
        "subscriptions-missing-from-checkpoints",
        "a checkpoint leaves out subscriptions to clients' metrics",
        Edit(checkpoints, "names", "in kinds for", "in kinds if kind != 'subscription' for"),
        options={**_CHECKPOINTED, **_SUBSCRIBERS},
    ),
)
