import shutil
import socket
from functools import partial
from pathlib import Path

import msgspec
import pytest

from antiphon.client import local_folder
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    InvalidRequestError,
    NewerFormatError,
    PortInUseError,
)
from antiphon.node.config import NodeConfig, Timings, load_config
from antiphon.tools import cluster_files, free_ports, local_start, node_process, supervisor
from antiphon.tools.local_cluster import LocalCluster


def test_what_is_saved_is_loaded_and_follows_a_moved_directory(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    cluster = cluster_files.new_cluster(first, 3, "127.0.0.1", "oxia")
    cluster_files.save_cluster(first, cluster)
    assert local_folder.load_cluster(first) == cluster
    first.rename(second)
    moved = local_folder.find_cluster(second)
    assert [node.dir for node in moved.nodes] == [str(second / f"node-{i}") for i in range(3)]
    assert moved.cluster_id == cluster.cluster_id


def test_nodes_found_a_cluster_until_all_have_been_up(tmp_path: Path) -> None:
    cluster = cluster_files.new_cluster(tmp_path, 1, "127.0.0.1", "oxia")
    (node,) = cluster.nodes
    node.native = node.kafka = node.http = node.peer = "127.0.0.1:1"
    config = node_process.node_config(cluster, node)
    assert config.bootstrap
    node_process.write_config(config, Path(node.dir))
    assert node_process.node_config(cluster, node).bootstrap, "it was not up yet"
    cluster.founded = True
    assert not node_process.node_config(cluster, node).bootstrap
    node_process.write_config(config, Path(node.dir))
    assert "bootstrap" not in (Path(node.dir) / "node.toml").read_text()


def test_nodes_that_start_together_wait_long_for_their_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[NodeConfig] = []

    def fork(_folder: Path, run: partial[None], _others: object) -> tuple[int, int]:
        told.append(run.args[0])
        raise InvalidRequestError("enough")

    monkeypatch.setattr(supervisor, "fork_node", fork)
    cluster = cluster_files.new_cluster(tmp_path, 3, "127.0.0.1", "oxia")
    with pytest.raises(InvalidRequestError, match="enough"):
        local_start.start_all(tmp_path, cluster, dict.fromkeys(("kafka", "native", "http"), 0), [])
    (first,) = told
    assert Timings().ready_wait < first.timings.ready_wait < supervisor.READY_TIMEOUT_S * 1000
    # Started alone later, it says after the usual time that it reaches nobody.
    assert load_config(Path(cluster.nodes[0].dir)).timings == Timings()


def test_absent_cluster_says_how_to_start_one(tmp_path: Path) -> None:
    assert local_folder.load_cluster(tmp_path) is None
    with pytest.raises(AntiphonError, match="antiphon up --dir"):
        local_folder.find_cluster(tmp_path)


@pytest.mark.parametrize(
    "data", [b"\xff", b"[" * 100_000, b'{"format": 1, "cluster_id": "\xed\xa0\x80"}', b"9" * 5000]
)
def test_bytes_that_are_no_description_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / local_folder.CLUSTER_FILE).write_bytes(data)
    with pytest.raises(ForeignDirectoryError, match="is not a cluster description"):
        local_folder.load_cluster(tmp_path)


@pytest.mark.parametrize("count", [0, -1, 65])
def test_number_of_nodes_is_bounded(tmp_path: Path, count: int) -> None:
    with pytest.raises(InvalidRequestError, match="1 to 64"):
        cluster_files.new_cluster(tmp_path, count, "127.0.0.1", "oxia")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '"text"', '{"format": 1, "nodes": 3}'])
def test_other_files_of_that_name_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ForeignDirectoryError, match="--dir"):
        local_folder.load_cluster(tmp_path)


def test_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode({"format": 99}))
    with pytest.raises(NewerFormatError, match="99"):
        local_folder.load_cluster(tmp_path)


def test_pid_of_an_ended_or_recycled_process_is_not_taken_for_a_node(tmp_path: Path) -> None:
    assert cluster_files.running_pid(tmp_path) is None
    (tmp_path / "node.pid").write_text("1 12345\n")  # pid 1 runs, but it started at another time
    assert cluster_files.running_pid(tmp_path) is None
    (tmp_path / "node.pid").write_text("nonsense")
    assert cluster_files.running_pid(tmp_path) is None


def test_port_in_use_names_port_listener_and_option_and_frees_the_others(tmp_path: Path) -> None:
    cluster = cluster_files.new_cluster(tmp_path, 2, "127.0.0.1", "oxia")
    anything = dict.fromkeys(("kafka", "native", "http"), 0)
    bound = supervisor.bind_ports(cluster, anything)
    taken = bound[0]["kafka"].getsockname()[1]
    try:
        other = cluster_files.new_cluster(tmp_path, 1, "127.0.0.1", "oxia")
        with pytest.raises(PortInUseError, match=f"{taken}.*kafka.*--kafka-port"):
            supervisor.bind_ports(other, {**anything, "kafka": taken})
    finally:
        supervisor.close_sockets(bound)
    again = supervisor.bind_ports(cluster, {"kafka": None, "native": None, "http": None})  # where they were
    assert again[0]["kafka"].getsockname()[1] == taken
    supervisor.close_sockets(again)


def test_any_free_port_is_one_that_no_outgoing_connection_gets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(free_ports.SHARE, raising=False)
    outgoing_from = int(free_ports.RANGE.read_text().split()[0])
    with socket.socket() as listener, socket.socket() as other:
        free_ports.bind_free(listener, "127.0.0.1")
        port = listener.getsockname()[1]
        assert free_ports.LOWEST <= port < outgoing_from
        listener.listen()
        monkeypatch.setattr(free_ports, "LOWEST", port)
        (tmp_path / "range").write_text(f"{port + 1}\t60999\n")
        monkeypatch.setattr(free_ports, "RANGE", tmp_path / "range")
        free_ports.bind_free(other, "127.0.0.1")  # the only port there is taken: the kernel's choice
        assert other.getsockname()[1] != port


def test_programs_side_by_side_draw_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [free_ports.share_of(range(100, 110), f"{number}/3") for number in range(3)]
    assert shares == [range(100, 103), range(103, 106), range(106, 109)]
    assert free_ports.share_of(range(100, 90), "0/1") == range(0)
    for wrong in ("3/3", "0/0", "a/b", "1", "-1/2"):
        with pytest.raises(InvalidRequestError, match="ANTIPHON_PORT_SHARE"):
            free_ports.share_of(range(10), wrong)
    monkeypatch.setenv("ANTIPHON_PORT_SHARE", "999/1000")
    with socket.socket() as listener:
        free_ports.bind_free(listener, "127.0.0.1")
        end = int(free_ports.RANGE.read_text().split()[0])
        share = free_ports.share_of(range(free_ports.LOWEST, end), "999/1000")
        assert listener.getsockname()[1] in share


def test_port_out_of_range_is_refused(tmp_path: Path) -> None:
    cluster = cluster_files.new_cluster(tmp_path, 2, "127.0.0.1", "oxia")
    with pytest.raises(InvalidRequestError, match="65536"):
        supervisor.bind_ports(cluster, {"kafka": 65_535, "native": 0, "http": 0})


@pytest.mark.cluster
def test_nodes_whose_folders_are_gone_are_stopped_too(tmp_path: Path) -> None:
    cluster = LocalCluster.start(1, tmp_path / "cluster")
    (node,) = cluster.nodes.values()
    shutil.rmtree(cluster.dir, ignore_errors=True)
    cluster.stop()
    assert not Path(f"/proc/{node.pid}").exists()


@pytest.mark.parametrize("folder", ["", "..", "/", "a/.."])
def test_a_node_without_a_folder_of_its_own_is_refused(tmp_path: Path, folder: str) -> None:
    cluster = cluster_files.new_cluster(tmp_path, 1, "127.0.0.1", "oxia")
    cluster.nodes[0].dir = folder
    cluster_files.save_cluster(tmp_path, cluster)
    with pytest.raises(ForeignDirectoryError, match="node 0 has no folder"):
        local_folder.load_cluster(tmp_path)
