"""Starting a node: every reason why it cannot is one clear line, and a lone survivor does not wait for ever."""

import asyncio
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.errors import DirectoryInUseError
from antiphon.node.config import Member, NodeConfig, Ports, Timings, save_config
from antiphon.server.server import Server
from tests.node.processes import SCRIPT, bind, port_of
from tests.node.real_nodes import cluster_of, in_real_time


def config_for(directory: Path, **changes: object) -> NodeConfig:
    config = NodeConfig(
        cluster_id="test",
        node_id=0,
        nodes=[Member(0, "127.0.0.1:1")],
        dir=directory,
        bootstrap=True,
        ports=Ports(0, -1, -1, -1),
        timings=Timings(ready_wait=200),
    )
    for name, value in changes.items():
        setattr(config, name, value)
    directory.mkdir(exist_ok=True)
    save_config(config, directory)
    return config


@pytest.mark.cluster
def test_a_node_may_open_as_many_files_as_the_system_grants(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    config_for(tmp_path)
    limited = ("/bin/sh", "-c", 'ulimit -Sn 256 && exec "$0" "$@"')
    with subprocess.Popen(
        (*limited, sys.executable, str(SCRIPT), str(tmp_path), "bootstrap"), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        finally:
            process.terminate()


def start_fails(directory: Path) -> str:
    """Start a node process that must fail; returns what it says."""
    done = subprocess.run(
        (sys.executable, str(SCRIPT), str(directory)), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("listener", ["native", "kafka", "http"])
def test_a_taken_port_is_named(tmp_path: Path, listener: str) -> None:
    with bind() as taken:
        ports = Ports(0, -1, -1, -1)
        setattr(ports, listener, port_of(taken))
        config_for(tmp_path / "node", ports=ports)
        said = start_fails(tmp_path / "node")
        assert said.startswith("port_in_use: ")
        assert str(port_of(taken)) in said


@pytest.mark.cluster
def test_a_directory_of_another_cluster_or_a_newer_version_is_refused(tmp_path: Path) -> None:
    config_for(tmp_path)
    identity = {"format": 1, "cluster_id": "other", "node_id": 0, "disk_id": "d"}
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    assert start_fails(tmp_path).startswith("foreign_directory: ")
    (tmp_path / "identity.json").write_text(json.dumps(identity | {"format": 99, "cluster_id": "test"}))
    assert start_fails(tmp_path).startswith("newer_format: ")


@pytest.mark.cluster
@in_real_time
async def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as nodes:
        config = nodes.config(0)
        config.ports = Ports(0, -1, -1, -1)
        save_config(config, config.dir)
        said = await asyncio.to_thread(start_fails, config.dir)
        assert said.startswith("directory_in_use: ")
        with pytest.raises(DirectoryInUseError):
            Server(config)


@in_real_time
async def test_a_node_without_a_majority_is_up_but_has_not_joined(tmp_path: Path) -> None:
    members = [Member(i, f"127.0.0.1:{port}") for i, port in enumerate((1, 2, 3))]
    server = Server(config_for(tmp_path, nodes=members))
    await server.start()
    try:
        assert not await server.node.joined(0.1)
        assert server.node.gateway.metadata.version == -1
    finally:
        await server.stop()
        await server.stop()  # a second stop does nothing


@in_real_time
async def test_a_start_that_fails_gives_the_directory_back(tmp_path: Path) -> None:
    with bind() as taken:
        config = config_for(tmp_path, ports=Ports(port_of(taken), -1, -1, -1))
        server = Server(config)
        with pytest.raises(Exception, match="native listener"):
            await server.start()
        await server.stop()
    again = Server(config_for(tmp_path))
    await again.start()
    assert await again.node.joined(20)
    await again.stop()
