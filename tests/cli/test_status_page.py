"""What `antiphon status` says, without a cluster."""

import pytest

from antiphon.cli.status_page import render
from antiphon.model.metadata import ClusterMeta, NodeMeta
from antiphon.model.requests import StatusReply
from antiphon.tools.cluster_health import summarise


def test_entries_that_cannot_be_read_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = (NodeMeta(0, "h:1"), NodeMeta(1, "h:2"))
    cluster = ClusterMeta("c", 9, 0, nodes, ())
    for unreadable in (0, 3):
        answers: dict[int, StatusReply | None] = {
            node.node_id: StatusReply(node, "1", 1, 1, (), node.node_id * unreadable) for node in nodes
        }
        found = summarise(cluster, answers)
        assert (found["healthy"], found["metadata_unreadable"]) == (True, unreadable)
        render(found)
        shown = capsys.readouterr().out
        assert ("metadata_not_readable" in shown) == bool(unreadable)
    assert "3 entries of the cluster's own log" in shown
