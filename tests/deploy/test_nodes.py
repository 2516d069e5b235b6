"""Three nodes, started as the pods of `deploy/kubernetes` are: the same file, their names in the environment, secrets.

What differs: addresses of the loopback interface in place of names, and another folder.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon
from antiphon.tools.free_ports import bind_free
from tests.cli.shell import antiphon as command
from tests.deploy.manifests import DEPLOY, KUBERNETES, container, of_kind

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

READY_S = 120.0  # each look starts a Python, and the machine may be busy
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Pods:
    """Pods of the StatefulSet, as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        names = [word for host in HOSTS for word in ("--name", host)]
        done = command("secrets", "--out", str(folder / "secrets"), *names)
        assert done.returncode == 0, done.stderr
        self.ports = _free_ports()
        for node, host in enumerate(HOSTS):
            self._write_config(node, host)

    def _write_config(self, node: int, host: str) -> None:
        text = (KUBERNETES / "node.toml").read_text()
        for number, place in enumerate(HOSTS):
            text = text.replace(f"antiphon-{number}.antiphon:", f"{place}:")
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(free), text)
        text = text.replace('listen_host = "0.0.0.0"', f'listen_host = "{host}"')
        text = text.replace("/var/lib/antiphon", str(self.folder / f"volume-{node}"))
        text = text.replace("/etc/antiphon/secrets", str(self.folder / "secrets" / "node"))
        (self.folder / f"node-{node}.toml").write_text(text)

    def environment(self, node: int, *, founding: bool = False) -> dict[str, str]:
        """What the manifest sets for a pod, with the names of these processes."""
        found = {"POD_NAME": f"antiphon-{node}", "POD_NAMESPACE": "test"}
        for one in container()["env"]:
            if "value" in one:
                found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found[m[1]], one["value"])
        assert found["ANTIPHON_ADVERTISED_HOST"] == f"antiphon-{node}.antiphon.test.svc.cluster.local"
        found["ANTIPHON_ADVERTISED_HOST"] = HOSTS[node]
        found["ANTIPHON_SERVERS"] = f"{HOSTS[node]}:{self.ports[7400]}"
        found["ANTIPHON_TLS"] = str(self.folder / "secrets" / "node" / "authority.pem")
        found["ANTIPHON_PASSWORD_FILE"] = str(self.folder / "secrets" / "admin.password")
        assert any(one["name"] == "ANTIPHON_BOOTSTRAP" for one in container()["env"])
        if founding:
            found["ANTIPHON_BOOTSTRAP"] = "true"
        return {**os.environ, **found}

    def start(self, node: int, *, founding: bool = False) -> None:
        arguments = [
            str(self.folder / f"node-{node}.toml") if one.endswith("node.toml") else one
            for one in container()["args"]
        ]
        self.processes[node] = subprocess.Popen(
            [sys.executable, "-m", "antiphon.cli.main", *arguments],
            env=self.environment(node, founding=founding),
            stderr=subprocess.DEVNULL,
        )

    def probe(self, node: int, *words: str) -> bool:
        """What the container's own check says."""
        text = (DEPLOY / "container" / "healthcheck.py").read_text().replace("127.0.0.1", HOSTS[node])
        environment = {**os.environ, "ANTIPHON_HTTP_PORT": str(self.ports[8080])}
        done = subprocess.run([sys.executable, "-c", text, *words], env=environment, check=False)
        return done.returncode == 0

    def until_ready(self, *nodes: int) -> None:
        deadline = time.monotonic() + READY_S
        while not all(self.probe(node, "ready") for node in nodes):
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.2)

    def stop(self, node: int) -> None:
        """As a pod is stopped: the hook, the signal, the end within the grace period."""
        words = container()["lifecycle"]["preStop"]["exec"]["command"]
        script = words[-1].replace("/opt/antiphon/bin/antiphon", f"{sys.executable} -m antiphon.cli.main")
        hook = [*words[:-1], script]
        done = subprocess.run(hook, env=self.environment(node), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "handed over" in done.stdout
        self.processes[node].terminate()
        grace_s = of_kind("StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert self.processes.pop(node).wait(grace_s) == 0

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _free_ports() -> dict[int, int]:
    found, open_ones = {}, []
    for port in (7400, 9092, 6648, 8080, 7500):
        listener = socket.socket()
        open_ones.append(listener)
        bind_free(listener, "")
        found[port] = listener.getsockname()[1]
    for listener in open_ones:
        listener.close()
    return found


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    made = Pods(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(400)
def test_pods_found_a_cluster_and_are_restarted(pods: Pods) -> None:
    for node in range(3):
        pods.start(node, founding=True)
    pods.until_ready(0, 1, 2)
    assert pods.probe(0), "it is alive as well"
    password = (pods.folder / "secrets" / "admin.password").read_text().strip()
    servers = f"{HOSTS[0]}:{pods.ports[7400]}"
    with antiphon.connect(
        servers, user="admin", password=password, tls=str(pods.folder / "secrets" / "authority.pem")
    ) as db:
        db.create_topic("flights", shards=3, replicas=3).append(b"EWR-IAH", shard=0)
        addresses = {node.node_id: node.native for node in db.metadata().nodes}
        assert addresses == {node: f"{host}:{pods.ports[7400]}" for node, host in enumerate(HOSTS)}
        for node in (2, 1, 0):  # as a rolling update does
            pods.stop(node)
            assert not pods.probe(node)
            pods.start(node)
            pods.until_ready(node)
            db.topic("flights").append(b"EWR-IAH", shard=node)
        values = [record.value for shard in range(3) for record in db.topic("flights").read(shard)]
        assert len(values) == 4
    waited = command("node", "await", "0", "--json", environment=pods.environment(1))
    assert json.loads(waited.stdout)["in_step"] is True
    # A pod whose volume was lost joins what is there: nobody says that it founds a cluster.
    pods.stop(1)
    pods.start(1)
    pods.until_ready(1)


@pytest.mark.parametrize("name", ["antiphon", "2antiphon", "", "antiphon-", "antiphon-99999999999"])
def test_a_name_without_a_number_at_its_end_is_no_id(name: str, tmp_path: Path) -> None:
    done = command("node", "start", "--config", str(tmp_path / "node.toml"), "--id", name)
    assert done.returncode == 2
    assert "ends in one" in done.stderr
    done = command("node", "start", "--dir", str(tmp_path), "--id", "1")
    assert done.returncode == 2
    assert "go with --config" in done.stderr


def test_secrets_are_kept_and_refused(tmp_path: Path) -> None:
    where = tmp_path / "secrets"
    words = ("secrets", "--out", str(where), "--name", "*.antiphon.example", "--json")
    made = json.loads(command(*words).stdout)
    assert sorted(made["files"]) == sorted(file.name for file in (where / "node").iterdir())
    before = {
        file.name: file.read_bytes()
        for file in where.rglob("*")
        if file.is_file() and file.name != "first-user"
    }
    assert command(*words).returncode == 0
    assert all(file.read_bytes() == before[file.name] for file in where.rglob("*") if file.name in before)
    assert {oct(file.stat().st_mode & 0o777) for file in where.rglob("*") if file.is_file()} == {"0o600"}
    other = command("secrets", "--out", str(where), "--name", "b.example", "--folder", "b")
    assert other.returncode == 0
    assert (where / "b" / "peer.key").read_bytes() == (where / "node" / "peer.key").read_bytes()
    for wrong in (("--out", str(where)), ("--out", str(where), "--name", "a", "--folder", "../x")):
        assert command("secrets", *wrong).returncode == 2
