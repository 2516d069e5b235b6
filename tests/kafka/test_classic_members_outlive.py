"""Members of the classic protocol, by three libraries in one group, go on when their coordinator is killed."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.classic_member import LIBRARIES, SESSION_MS
from tests.node.processes import Processes, eventually

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("classic-cluster")) as processes:
        yield processes


class Member:
    """A member in a process of its own, and the lines that it wrote, with their times."""

    def __init__(self, library: str, servers: str, topic: str, group: str) -> None:
        self.library = library
        self.process = subprocess.Popen(
            (sys.executable, "-m", "tests.kafka.classic_member", library, servers, topic, group),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[tuple[float, str]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append((time.monotonic(), line.strip()))

    def since(self, at_s: float, *beginnings: str) -> list[str]:
        return [line for said_s, line in list(self.lines) if said_s >= at_s and line.startswith(beginnings)]

    @property
    def owned(self) -> list[str]:
        said = self.since(0, "owns")
        return said[-1].split()[1:] if said else []

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()  # ends with the process's last line; a pipe closed under it would be an error in its thread
        self.process.stdout.close()


@pytest.fixture
def members(cluster: Processes) -> Iterator[list[Member]]:
    servers = bootstrap(cluster)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("outlived", 3, 3)])["outlived"].result(20)
    found = [Member(library, servers, "outlived", "outlives") for library in LIBRARIES]
    yield found
    for member in found:
        member.end()


def bootstrap(cluster: Processes) -> str:
    return ",".join(node.kafka for node in cluster.metadata(cluster.alive()[0]).nodes)


def described(servers: str) -> Any:
    admin = AdminClient({"bootstrap.servers": servers})
    return admin.describe_consumer_groups(["outlives"])["outlives"].result(20)


def parts(group: Any) -> dict[str, list[int]]:
    """What each member has, by its id."""
    return {
        member.member_id: [place.partition for place in member.assignment.topic_partitions]
        for member in group.members
    }


def test_members_of_three_libraries_notice_nothing_when_their_coordinator_is_killed(
    cluster: Processes, members: list[Member]
) -> None:
    servers = bootstrap(cluster)
    eventually(lambda: sorted(one for member in members for one in member.owned) == ["0", "1", "2"], 60)
    eventually(lambda: all(member.since(time.monotonic() - 1, "committed") for member in members), 20)
    before = described(servers)
    killed_s = time.monotonic()
    cluster.kill(before.coordinator.id)
    try:
        time.sleep(2 * SESSION_MS / 1000)
        after = described(servers)
        assert {member.library: member.since(killed_s, "assigned", "revoked") for member in members} == {
            member.library: [] for member in members
        }
        lately_s = time.monotonic() - 5
        assert all(len(member.since(lately_s, "committed")) >= 5 for member in members)
        assert [member.since(lately_s, "failed") for member in members] == [[], [], []]
        assert after.coordinator.id != before.coordinator.id
        assert (after.state, parts(after)) == (before.state, parts(before))
        assert [len(owned) for owned in parts(after).values()] == [1, 1, 1]
    finally:
        cluster.start(before.coordinator.id)
