"""`make upgrade`: three nodes of an earlier version are upgraded node by node, while clients write, read and commit.

python -m tests.rolling.upgrade [--old COMMIT] [--keep]

The earlier version is `OLD`: the newest release once there is one. Its wheel is built from the repository, and installed
beside the present one. What is tried, in this order:

1. Three nodes of the old version; native and Kafka clients, transactions, groups of both protocols, a client of the old
   version. They go on until the end. A subscription to metrics of clients, if the old version takes one; else it is
   refused until all nodes are new. Each node tells of it from then on. A topic with `expected.offset.header`, which
   such a version does not know either, is refused as long.
2. One node gets the new version, and goes back to the old one: nothing new was used, so it starts.
3. `antiphon node restart --all` of the new version upgrades all nodes. Between two of them, everything is used once.
4. Something is used that the old version does not know. Then its replica of `__cluster` stops there (`newer_format`), and
   no log is changed; the new version goes on with the folders. An old version that takes subscriptions knows all that is
   used: its nodes go on with the folders, and tell of the subscription.
5. Nothing that was acknowledged is lost, or there twice.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import antiphon
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.tools.cluster_files import running_pid
from tests.packaging.environments import ROOT, bare, build
from tests.rolling.group_load import GroupLoad, OldClient
from tests.rolling.kept_ports import kept_ports
from tests.rolling.kept_subscription import KeptSubscription
from tests.rolling.steady_load import SteadyLoad

# No release has been tagged yet. This commit is the last before log compaction, sessions in tables and the second version
# of Kafka's transactions: all of these are new to its nodes.
OLD: Final = "f644ba6d7870f59cdc6a5d0ee511b56832ded4d8"
# Who hangs is found by these, who is slow is not: three nodes, their load and the command share this machine.
NODE_S: Final = 300
COMMAND_S: Final = 1200
NODES: Final = (0, 1, 2)
LAST: Final = f"{len(NODES)} of {len(NODES)}"  # nodes are new


class Version:
    """An installed antiphon."""

    def __init__(self, name: str, python: Path) -> None:
        self.name = name
        self.python = python

    def run(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """A command of this version; AssertionError where it ends with another code."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ANTIPHON"))}
        done = subprocess.run(
            [str(self.python), "-m", "antiphon.cli.main", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
            cwd=self.python.parent,
            env=kept,
        )
        if code is not None and done.returncode != code:
            raise AssertionError(f"{self.name}: antiphon {' '.join(words)}\n{done.stdout}{done.stderr}")
        return done

    def runs(self, node_dir: Path) -> bool:
        """Is the node's process one of this version?"""
        pid = running_pid(node_dir)
        return pid is not None and os.fsencode(str(self.python)) in Path(f"/proc/{pid}/cmdline").read_bytes()


def old_wheel(commit: str, folder: Path) -> Path:
    """The wheel of a commit of this repository."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit], capture_output=True, check=False
    )
    if done.returncode:
        raise AssertionError(
            f"commit {commit} is not in this repository ({done.stderr.decode().strip()}): fetch its whole history"
        )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tree:
        tree.extractall(folder / "source", filter="data")
    return build("wheel", folder / "wheel", folder / "source")


def no_history(commit: str) -> str:
    """Why the wheel of a commit cannot be made here; nothing where it can."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return "there is no history here: this is no clone, or git is not installed"
    asked = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
        return ""
    return f"the clone does not have commit {commit[:12]}: git fetch --unshallow"


class Upgrade:
    """The steps, each told with how long it took."""

    def __init__(self, folder: Path, old: Version, new: Version) -> None:
        self.old, self.new = old, new
        self.dir = folder / "cluster"
        self._began = time.monotonic()
        known = old.run("up", "--help").stdout
        ports = [
            name for name in ("--kafka-port", "--oxia-port", "--native-port", "--http-port") if name in known
        ]
        kept = kept_ports(ports, len(NODES))
        said = old.run("up", "--nodes", "3", "--dir", str(self.dir), *kept, "--detach", "--json")
        nodes = json.loads(said.stdout)["nodes"]
        self.native = ",".join(node["native"] for node in nodes)
        self.kafka = ",".join(node["kafka"] for node in nodes)
        self.subscription = KeptSubscription(self.kafka)
        self.has_conditions = False  # is there a topic with them?
        self.told("three nodes of the old version")

    def told(self, what: str) -> None:
        """A line of progress."""
        sys.stdout.write(f"{time.monotonic() - self._began:6.1f} s  {what}\n")
        sys.stdout.flush()

    def node_dir(self, node: int) -> Path:
        return self.dir / f"node-{node}"

    def restart(self, version: Version, *nodes: int) -> None:
        """Restart nodes, one after the other, with a version; it is a command of the new one in either case."""
        hook = f"{version.python} {Path(__file__).parent / 'restart_with.py'} {version.python} {self.dir} {{node}}"
        words = ["node", "restart", *map(str, nodes), "--dir", str(self.dir), "--json", "--no-rebalance"]
        words += ["--timeout", str(NODE_S)] + (["--command", hook] if version is self.old else [])
        said = json.loads(self.new.run(*words).stdout)
        for one in said["restarted"]:
            assert version.runs(self.node_dir(one["node"])), f"node {one['node']} is not {version.name}"
            self.told(
                f"node {one['node']} is of the {version.name} version: {one['handed_over']} leaderships handed over, "
                f"{one['away_s']} s away, {one['behind_s']} s behind"
            )

    def make_kinds(self) -> None:
        """A topic or table of each kind, which `use_everything` uses."""
        with antiphon.connect(self.native) as db:
            db.create_topic("voted", shards=2, replicas=3, profile="raft")
            db.create_topic("lived", shards=2, replicas=3, profile="fluvio")
            db.create_table("merged", shards=1, replicas=3, config={"writers": "multi"})
            db.create_topic("steady-paid-natively", shards=1, replicas=3)

    def run_in_short(self) -> None:
        """Only the way forward: all nodes by one command, under load, and what was acknowledged is there."""
        self.make_kinds()
        with SteadyLoad(self.native, self.kafka) as load:
            load.until_written(20)
            self.use_everything("old")
            self.restart(self.new, *NODES)
            load.until_written(20)
        for line in load.figures:
            self.told(line)
        load.check()
        self.use_everything(LAST)
        self.use_what_is_new()

    def run(self) -> None:
        """See the module's text."""
        self.make_kinds()
        refused = self.subscription.make()
        knows_all = (
            self.has_conditions
        ) = not refused  # a version that takes one may take such topics, and says nothing
        self.told(f"a subscription is refused: {refused}" if refused else "a subscription is made")
        load = SteadyLoad(self.native, self.kafka)
        groups = GroupLoad(self.native, self.kafka)
        old_client = OldClient(self.old.python, self.native)
        with load, groups, old_client:
            load.until_written(20)
            self.use_everything("old")
            self.told("clients write, read and commit")
            self.restart(self.new, 0)
            self.use_everything("one new")
            self.restart(self.old, 0)
            self.use_everything("back")
            self.told("a node that went back to the old version is in step")
            for count, node in enumerate(NODES, 1):
                self.restart(self.new, node)
                load.until_written(10)
                self.use_everything(f"{count} of {len(NODES)}")
                self.told(f"{count} of 3 nodes are new, and all is used")
            load.until_written(20)
        for line in [*load.figures, *old_client.figures]:
            self.told(line)
        load.check()
        groups.check()
        old_client.check()
        self.told("all that was acknowledged is there, once")
        self.use_what_is_new()
        if knows_all:
            self.go_back()
        else:
            self.go_back_in_vain()

    def use_everything(self, when: str) -> None:
        """Once each, whatever the versions of the nodes: what both versions know."""
        with antiphon.connect(self.native) as db:
            for name in ("voted", "lived"):
                topic = db.topic(name)
                at = topic.append(when.encode(), shard=0)
                found = [record.value for record in topic.read(0) if record.offset == at.offset]
                assert found == [when.encode()], f"{name}, {when}: {found}"
            merged = db.table("merged")
            merged.put(when, b"x")
            assert merged.get(when) is not None
            with db.producer("upgrade-payer") as producer, producer.begin() as transaction:
                transaction.append("steady-paid-natively", when.encode())
            name = f"made-{when.replace(' ', '-')}"
            db.create_topic(name, shards=3, replicas=3)
            db.topic(name).append(b"x", shard=1)
            db.elect_leader(name, 1)
            db.alter_topic(name, shards=4)
            db.delete_topic(name)
        self.new.run("status", "--servers", self.native)
        if not self.subscription.is_made:
            refused, is_last = self.subscription.make(), when == LAST
            assert bool(refused) != is_last, f"a subscription, {when}: {refused or 'is made'}"
        if self.subscription.is_made:
            self.subscription.check()
        if not self.has_conditions:
            self.has_conditions = self.make_conditional()
            assert self.has_conditions == (when == LAST), f"a topic with conditions, {when}"

    def make_conditional(self) -> bool:
        """Make a topic whose records' headers are conditions; False: some node is not of a version that knows it."""
        with antiphon.connect(self.native) as db:
            try:
                db.create_topic("conditional", replicas=3, config={"expected.offset.header": "true"})
            except InvalidRequestError:
                return False
            return True

    def use_what_is_new(self) -> None:
        """What nodes of the old version do not know."""
        with antiphon.connect(self.native) as db:
            db.create_topic("squeezed", shards=1, replicas=3, config={"cleanup.policy": "compact"})
            db.topic("squeezed").append(b"1", key=b"k")
            with db.session() as session:
                db.table("default").put("here", b"x", session=session)
        self.new.run("node", "settings", "--all", "--set", "num_partitions=2", "--servers", self.native)
        self.told("a compacted topic, a session, and a setting of all nodes")

    def go_back(self) -> None:
        """Nodes of the old version go on with the folders, and so do those of the new one after them."""
        for version in (self.old, self.new):
            self.new.run("down", "--dir", str(self.dir))
            version.run("up", "--dir", str(self.dir), "--detach")
            with antiphon.connect(self.native) as db:
                assert [record.value for record in db.topic("squeezed").read(0)] == [b"1"]
            self.subscription.check()
            self.told(f"the {version.name} version goes on, and tells of the subscription")
        self.new.run("down", "--dir", str(self.dir))

    def go_back_in_vain(self) -> None:
        """Nodes of the old version stop at the newer records, and leave the logs as they are."""
        self.new.run("down", "--dir", str(self.dir))
        before = {node: digest(self.node_dir(node)) for node in NODES}
        for node in NODES:
            log = self.node_dir(node) / "node.log"
            told = log.stat().st_size
            done = self.old.run("node", "start", "--dir", str(self.node_dir(node)), code=None)
            self.old.run("down", "--dir", str(self.dir), code=None)
            said = done.stderr + log.read_text()[told:]
            assert "NewerFormatError" in said, f"node {node} started: {said[-2_000:]}"
            assert digest(self.node_dir(node)) == before[node], (
                f"the old version changed files of node {node}"
            )
        self.told("the old version stops at what it cannot read, and has changed nothing")
        self.new.run("up", "--dir", str(self.dir), "--detach")
        with antiphon.connect(self.native) as db:
            assert [record.value for record in db.topic("squeezed").read(0)] == [b"1"]
        self.new.run("status", "--servers", self.native)
        self.subscription.check()
        known = json.loads(self.new.run("client-metrics", "list", "--json", "--servers", self.native).stdout)
        assert [one["name"] for one in known] == ["kept"], known
        self.new.run("down", "--dir", str(self.dir))
        self.told("the new version goes on with them")


def digest(node_dir: Path) -> dict[str, str]:
    """What the logs of a node say, file by file."""
    return {
        str(file.relative_to(node_dir)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((node_dir / "shards").rglob("*"))
        if file.is_file()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it all; 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.rolling.upgrade", description=__doc__)
    parser.add_argument("--old", default=OLD, help="the commit of the earlier version")
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look at it")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="antiphon-upgrade-"))
    upgrade: Any = None
    try:
        old = Version("old", bare(folder / "old", old_wheel(options.old, folder / "old-build")))
        new = Version("new", bare(folder / "new", build("wheel", folder / "new-wheel")))
        upgrade = Upgrade(folder, old, new)
        upgrade.run()
    except (AssertionError, AntiphonError, subprocess.TimeoutExpired) as error:
        sys.stdout.write(f"FAILED: {error}\n0 passed, 1 failed\n")
        return 1
    finally:
        if upgrade is not None:
            new.run("down", "--dir", str(folder / "cluster"), code=None)
        if options.keep:
            sys.stdout.write(f"kept: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write("1 passed, 0 failed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
