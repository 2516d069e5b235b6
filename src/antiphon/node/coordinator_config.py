"""What a node tells its coordinator at its start."""

from typing import Final

from antiphon.coordination.coordinator import CoordinatorConfig
from antiphon.coordination.membership import Silence
from antiphon.node.config import NodeConfig

AFTER_START_EXTRA_MS: Final = 800  # a node needs this long to find a new coordinator
ASSEMBLY_MS: Final = 15_000  # a fresh cluster's topics wait this long for all of its nodes


def coordinator_config(config: NodeConfig) -> CoordinatorConfig:
    """From the settings of the node on which it runs."""
    return CoordinatorConfig(
        cluster_id=config.cluster_id,
        initial_nodes=len(config.nodes),
        silence=Silence(
            dead_after_ms=config.timings.node_dead,
            after_start_ms=config.timings.node_dead + AFTER_START_EXTRA_MS,
        ),
        voters=config.voters,
        assembly_ms=ASSEMBLY_MS,
        default_profile=config.profile,
        capacity=config.limits.capacity,
        checkpoints=config.metadata.rule,
    )
