"""The drills: what each one is about is brought about on three nodes, and its commands must say what the page says."""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

import antiphon
from antiphon import system
from antiphon.errors import AntiphonError
from antiphon.security.authority import Issued, issue
from antiphon.security.private_files import write_private
from antiphon.tools.cluster_files import running_pid
from antiphon.tools.local_cluster import LocalCluster
from tests.pages.blocks import ROOT, Reader, blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

PAGE: Final = "docs/drills.md"
_DRILL: Final = re.compile(r"^<!-- drill: (?P<what>[a-z-]+)(?: (?P<node>\d+))? -->$", re.MULTILINE)
YEARS_S: Final = 3 * 365 * 86_400
DOWN_S: Final = 10.0


class Trouble:
    """What drills are about."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.known: dict[str, Callable[[int], None]] = {
            "kill": self.kill,
            "wipe": self.wipe,
            "pair": self.pair,
            "disk-full": lambda node: self._disk(node, "full"),
            "disk-ok": lambda node: self._disk(node, "ok"),
            "expire": lambda _: self.expire(),
        }

    def kill(self, node: int) -> None:
        folder = self.cluster.nodes[node].dir
        pid = running_pid(folder)
        assert pid is not None
        self.cluster.nodes[node].pid = pid
        self.cluster.kill(node)
        deadline = time.monotonic() + DOWN_S
        while running_pid(folder) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(2)  # nobody looks before the others have noticed

    def wipe(self, node: int) -> None:
        self.kill(node)
        shutil.rmtree(self.cluster.nodes[node].dir)

    def pair(self, node: int) -> None:
        """A topic of two replicas, on this node and the one before, which leads; both have its record."""
        from antiphon.model.requests import CreateTopic

        with self._connected(20) as db:
            placement = ((node - 1, node),)
            db.run(db.aio.administer(CreateTopic("pair", replicas=2, placement=placement)))
            db.topic("pair").append(b"kept")
        time.sleep(1)

    def _disk(self, node: int, state: str) -> None:
        folder = self.cluster.nodes[node].dir
        self.cluster.nodes[node].pid = running_pid(folder) or 0
        self.cluster.until_taken(node, self.cluster.hurt(node, disk=state))
        if state == "full":  # a node notices when it has to write
            with contextlib.suppress(AntiphonError):
                self._write()
        time.sleep(3)

    def _write(self) -> None:
        with self._connected(3) as db:
            for number in range(40):
                db.table("default").put(f"drill-{number}", b"x", timeout_s=1)

    @contextlib.contextmanager
    def _connected(self, timeout_s: float) -> "Iterator[antiphon.Client]":
        """As the commands are, with the login of the folder."""
        from antiphon.client.local_folder import load_cluster
        from antiphon.tools.secure_folder import forget_settings, use_settings

        found = load_cluster(self.cluster.dir)
        assert found is not None
        use_settings(self.cluster.dir, found)
        try:
            with antiphon.connect(self.cluster.native, timeout_s=timeout_s) as db:
                yield db
        finally:
            forget_settings()

    def expire(self) -> None:
        """Certificates that were made long ago take the place of the nodes'."""
        for node in self.cluster.nodes.values():
            for name, key, authority in (
                ("node.pem", "node.key", "authority"),
                ("peer.pem", "peer-tls.key", "peers-authority"),
            ):
                signer = Issued(
                    *((self.cluster.dir / f"{authority}{end}").read_bytes() for end in (".pem", ".key"))
                )
                now_s = system.wall_s()
                with patch.object(system, "wall_s", lambda now_s=now_s: now_s - YEARS_S):
                    made = issue(signer, f"antiphon node {node.id}", ("127.0.0.1", "localhost"))
                write_private(node.dir / key, made.key)
                write_private(node.dir / name, made.certificate)


def steps() -> list[tuple[str, int, int]]:
    """The troubles of the page: (what, node, line)."""
    text = (ROOT / PAGE).read_text()
    return [
        (found["what"], int(found["node"] or -1), text.count("\n", 0, found.start()) + 1)
        for found in _DRILL.finditer(text)
    ]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(3, options=("--secure",), hurtable=True) as started:
        yield started


@pytest.mark.timeout(300)
def test_the_drills(cluster: LocalCluster, tmp_path: Path) -> None:
    trouble = Trouble(cluster)
    waiting = steps()
    blocks = [block for block in blocks_of(PAGE) if block.language == "sh"]
    assert len(blocks) >= 12
    with Reader(cluster, tmp_path, servers=False) as reader:
        for block in blocks:
            while waiting and waiting[0][2] < block.line:
                what, node, _ = waiting.pop(0)
                trouble.known[what](node)
            reader.follow(block)
    assert not waiting, "each trouble is followed by what to do about it"


def test_every_trouble_is_known() -> None:
    assert {what for what, _, _ in steps()} <= {"kill", "wipe", "pair", "disk-full", "disk-ok", "expire"}
    assert len(steps()) >= 6
