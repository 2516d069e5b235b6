"""`antiphon upgrade --check`: what is judged of a cluster, node by node; the command is run in tests/surface."""

import re
from pathlib import Path

import msgspec
import pytest

from antiphon.cli.upgrade_command import _next
from antiphon.coordination.cluster_records import FORMAT
from antiphon.model.findings import UNHEALTHY, Finding
from antiphon.model.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.requests import StatusReply
from antiphon.node.formats import FORMATS
from antiphon.tools.upgrade_check import Checked, judge_upgrade

NEW = "0.3.0"


def shard(**more: object) -> ShardMeta:
    found = ShardMeta(5, 0, ensemble=(0, 1, 2), live=(0, 1, 2), leader=1, status=ShardStatus.ONLINE)
    return msgspec.structs.replace(found, **more)


def cluster(one: ShardMeta | None = None, reads: int = FORMAT) -> ClusterMeta:
    nodes = tuple(NodeMeta(node, f"host-{node}:1", reads=reads) for node in range(3))
    topic = TopicMeta("t", b"t", Kind.TOPIC, 3, "oxia", (one or shard(),))
    return ClusterMeta("c", 7, 0, nodes, (topic,))


def answers(*versions: str | None, formats: object = FORMATS) -> dict[int, StatusReply]:
    return {
        node: StatusReply(cluster().nodes[node], version, 1, 1, (), formats=formats)  # type: ignore[arg-type]
        for node, version in enumerate(versions)
        if version is not None
    }


def judge(
    told: dict[int, StatusReply], meta: ClusterMeta | None = None, lacks: dict[int, str] | None = None
) -> Checked:
    return judge_upgrade(meta or cluster(), told, lacks or {}, NEW)


def test_a_whole_cluster_of_one_earlier_version_can() -> None:
    found = judge(answers("0.2.0", "0.2.0", "0.2.0"))
    assert (found.can, found.reasons, found.versions) == (True, (), ("0.2.0",))
    assert [(one.node, one.order) for one in found.nodes] == [(0, 3), (1, 1), (2, 2)], (
        "the coordinator's last"
    )
    assert _next(found, None, Path("elsewhere")) == "antiphon node restart --all --dir elsewhere"
    assert _next(found, "h:1", Path("elsewhere")) == "antiphon node restart --all --servers h:1"


def test_one_that_is_under_way_goes_on() -> None:
    found = judge(answers(NEW, "0.2.0", "0.2.0"))
    assert found.can
    assert found.notes == ("the upgrade to 0.3.0 is under way: nodes 1, 2 to go",)
    assert _next(found, "h:1", Path()) == "antiphon node restart 1 2 --servers h:1"


def test_one_that_is_done_says_so() -> None:
    found = judge(answers(NEW, NEW, NEW))
    assert (found.can, found.notes) == (True, ("every node has version 0.3.0",))
    assert _next(found, "h:1", Path()) is None


@pytest.mark.parametrize(
    ("told", "meta", "lacks", "reason"),
    [
        (answers("0.2.0", None, "0.2.0"), None, {}, "node 1 is down: start it again"),
        (answers("0.1.0", "0.2.0", "0.2.0"), None, {}, r"mixed \(0.1.0: node 0; 0.2.0: nodes 1, 2\)"),
        (
            answers("0.2.0", "0.2.0", "0.10.0"),
            None,
            {},
            "node 2 has version 0.10.0, which is later than 0.3.0",
        ),
        (answers("0.2.0", "0.2.0", "0.2.0"), None, {1: "node 1 is behind in 3 shards"}, "is behind in 3"),
        (
            answers("0.2.0", "0.2.0", "0.2.0"),
            cluster(shard(live=(0, 1))),
            {},
            "t/0: node 2 has not caught up",
        ),
        (
            answers("0.2.0", "0.2.0", "0.2.0"),
            cluster(shard(goal=(0, 1))),
            {},
            "t/0: its members are changing",
        ),
        (
            answers("0.2.0", "0.2.0", "0.2.0", formats=(("metadata", FORMAT + 1, FORMAT + 1),)),
            None,
            {},
            f"node 0 writes metadata in format {FORMAT + 1}; this version reads up to {FORMAT}",
        ),
        (
            answers("0.2.0", "0.2.0", "0.2.0", formats=(("sealed", 1, 1),)),
            None,
            {},
            "node 0 writes sealed in format 1; this version reads no such thing",
        ),
    ],
)
def test_what_stands_in_the_way_is_said(
    told: dict[int, StatusReply], meta: ClusterMeta | None, lacks: dict[int, str], reason: str
) -> None:
    found = judge(told, meta, lacks)
    assert not found.can
    assert re.search(reason, "\n".join(found.reasons)), found.reasons
    assert _next(found, "h:1", Path("none")) == "antiphon status --servers h:1"


def test_a_finding_stands_in_the_way_until_it_is_mended() -> None:
    told = answers("0.2.0", "0.2.0", "0.2.0")
    wrong = Finding("log_damaged", 5, UNHEALTHY, 1, "bad bytes")
    told[2] = msgspec.structs.replace(told[2], findings=(wrong,))
    assert judge(told).reasons == ("node 2, shard 5: log_damaged: bad bytes",)
    told[2] = msgspec.structs.replace(told[2], findings=(msgspec.structs.replace(wrong, mended_ms=2),))
    assert judge(told).can


def test_versions_that_read_less_are_told_of() -> None:
    less = tuple((name, written, read - 1) for name, written, read in FORMATS)
    found = judge(answers("0.2.0", "0.2.0", "0.2.0", formats=less))
    assert found.can
    assert "there is no way back once it was used" in found.notes[0]
    old = judge(answers("0.2.0", "0.2.0", "0.2.0", formats=()), cluster(reads=FORMAT - 1))
    assert [one.formats for one in old.nodes] == [None] * 3
    assert "of nodes 0, 1, 2 the changelog says them" in old.notes[1]


def test_a_node_of_a_local_cluster_that_is_down_is_to_be_started_first(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    found = judge(answers("0.2.0", None, "0.2.0"))
    assert _next(found, None, tmp_path) == f"antiphon node start --dir {tmp_path}/node-1"
