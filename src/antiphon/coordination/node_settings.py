"""Settings of nodes in the metadata: what may be set for a node, or for all of them, while they run.

Values are checked here by the table of `model.node_settings`, so that none is recorded that a node could not go by.
"""

from antiphon.coordination.cluster_records import SETTINGS_FORMAT
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.state import refuse_earlier
from antiphon.errors import InvalidRequestError
from antiphon.model.node_settings import ALL_NODES, AlterNodeSettings, NodeSettings, changed, check_settings


def alter(ledger: Ledger, request: AlterNodeSettings) -> None:
    """Record what the request changes; raises InvalidRequestError, with nothing recorded."""
    model, node = ledger.model, request.node
    check_settings(request.config)
    if node != ALL_NODES and node not in model.nodes:
        known = ", ".join(map(str, sorted(model.nodes))) or "none"
        raise InvalidRequestError(f"there is no node {node}; there are {known}", unknown="node")
    refuse_earlier(
        model,
        SETTINGS_FORMAT,
        "are of a version that goes by its node.toml alone: upgrade them first (`antiphon upgrade --check`)",
    )
    before = model.node_settings.get(node, NodeSettings(node, {}))
    after = changed(before, request.config)
    if after != before and not request.validate_only:
        ledger.put_settings(after)
