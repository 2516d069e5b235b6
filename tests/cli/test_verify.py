"""`antiphon verify`: its judges see what is wrong, and a short real run finds nothing."""

import asyncio
import json
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import antiphon
from antiphon.errors import InvalidRequestError
from antiphon.records.builder import build_batch, build_term_start
from antiphon.records.changes import VERSION
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import open_state
from antiphon.tools.cluster_files import running_pid
from antiphon.tools.local_cluster import COMMAND, LocalCluster
from antiphon.tools.verify.checks import (
    appends_are_there,
    appends_in_time_order,
    commits_are_kept,
    conditions_hold,
    producer_order,
    reads_are_of_the_log,
)
from antiphon.tools.verify.faults import DISK_FAULTS, FAULTS, parse_faults, plan
from antiphon.tools.verify.history import Append, History, Outcome, Seen, TableCall
from antiphon.tools.verify.logs import ShardCopy, compare_stores
from antiphon.tools.verify.tables import judge
from tests.node.real_nodes import cluster_of, run


def log_of(*values: bytes) -> dict[int, ShardCopy]:
    """A shard with a term's start at 0 and these values from 1 on."""
    copy = ShardCopy("t", 0, 7)
    copy.add(bytes(build_term_start(1, 0, 0)))
    for value in values:
        copy.add(bytes(build_batch([(None, value, (), 0)], base_offset=copy.end, leader_epoch=1)))
    return {0: copy}


def done(value: bytes, offset: int, invoked: int = 0, returned: int = 1) -> Append:
    return Append("w", 0, value, invoked, returned, Outcome.OK, offset, 1)


def test_acknowledged_appends_have_to_be_there_once() -> None:
    log = log_of(b"a", b"b")
    good = [done(b"a", 1), done(b"b", 2)]
    assert list(appends_are_there(good, log)) == []
    assert "LOST" in next(appends_are_there([*good, done(b"c", 3)], log))
    assert list(appends_are_there([done(b"a", 2), done(b"b", 2)], log))
    assert list(appends_are_there(good, log_of(b"a", b"b", b"a")))
    assert "nobody" in next(appends_are_there(good[:1], log))


def test_refused_appends_must_not_be_there_and_unknown_ones_may() -> None:
    log = log_of(b"a")
    assert list(appends_are_there([Append("w", 0, b"a", 0, 1, Outcome.REFUSED)], log))
    for there in (log, log_of()):
        assert list(appends_are_there([Append("w", 0, b"a", 0)], there)) == []
    assert list(appends_are_there([Append("w", 0, b"a", 0)], log_of(b"a", b"a")))


def test_conditions() -> None:
    log = log_of(b"a", b"b")
    there = replace(done(b"a", 1), expected_offset=1)
    refused = Append("w", 0, b"x", 0, 1, Outcome.REFUSED, expected_offset=1, actual_offset=3)
    assert list(conditions_hold([there, refused], log)) == []
    assert list(conditions_hold([replace(there, expected_offset=2)], log))
    assert list(conditions_hold([replace(refused, actual_offset=1)], log))
    assert list(conditions_hold([replace(refused, actual_offset=4)], log))


def test_order_of_time_and_of_production() -> None:
    assert list(appends_in_time_order([done(b"a", 2, 0, 5), done(b"b", 1, 4, 6)])) == []
    assert list(appends_in_time_order([done(b"a", 2, 0, 5), done(b"b", 1, 6, 7)]))
    assert list(producer_order([done(b"a", 1), done(b"b", 2)])) == []
    assert list(producer_order([done(b"a", 2), done(b"b", 1)]))


def test_gaps_in_a_log_are_seen() -> None:
    copy = ShardCopy("t", 0, 7)
    for base in (0, 2):
        copy.add(bytes(build_batch([(None, b"x", (), 0)], base_offset=base)))
    assert copy.problems


def test_what_readers_may_see() -> None:
    log = log_of(b"a", b"b", b"c")
    seen = [Seen("r", 0, 1, b"a"), Seen("r", 0, 2, b"b"), Seen("r", 0, 3, b"c")]
    assert list(reads_are_of_the_log(seen, log, once=True, complete=True)) == []
    assert list(reads_are_of_the_log(seen[:2], log, once=True, complete=True))
    for wrong in (
        [seen[0], seen[2]],
        [seen[0], seen[0]],
        [seen[1]],
        [Seen("r", 0, 1, b"z")],
        [Seen("r", 0, 9, b"a")],
    ):
        assert list(reads_are_of_the_log(wrong, log, once=True, complete=False))
    assert list(reads_are_of_the_log([seen[0], *seen], log, once=False, complete=True)) == []
    history = History(commits=[(0, 2), (0, 3)], committed_at_end={0: 3})
    assert list(commits_are_kept(history, log)) == []
    history.committed_at_end[0] = 2
    assert list(commits_are_kept(history, log))


def change(copy: ShardCopy, key: bytes, value: bytes | None, version: int, modifications: int = 0) -> None:
    headers = (("v", VERSION.pack(version, modifications, 0, 0)),)
    copy.add(bytes(build_batch([(key, value, headers, 0)], base_offset=copy.end)))


def call(
    what: str, value: bytes | None, version: int | None, at: int, *, until: int | None = None
) -> TableCall:
    returned = at + 1 if until is None else until
    return TableCall(0, what, b"k", value, None, at, returned, Outcome.OK, version)


def test_tables_are_judged_by_values_and_versions() -> None:
    copy = ShardCopy("t", 0, 7)
    change(copy, b"k", b"one", 0)
    change(copy, b"k", b"two", 1, 1)
    change(copy, b"k", None, 1, 1)
    puts = [call("put", b"one", 0, 0), call("put", b"two", 1, 10)]
    remove = TableCall(0, "delete", b"k", None, None, 20, 21, Outcome.OK)
    good = [
        *puts,
        call("get", b"one", 0, 5),
        call("get", b"two", 1, 9, until=12),
        remove,
        call("get", None, -1, 30),
    ]
    assert judge(good, [copy]) == ([], 0)
    stale = call("get", b"one", 0, 15)
    assert "not linearizable" in judge([*good, stale], [copy])[0][0]
    assert "LOST" in judge([*good, call("put", b"three", 2, 40)], [copy])[0][0]
    refused = TableCall(0, "put", b"k", b"two", 0, 10, 11, Outcome.REFUSED, 1)
    assert "refused" in judge([puts[0], refused], [copy])[0][0]


def test_an_open_put_counts_only_if_the_log_has_it() -> None:
    copy = ShardCopy("t", 0, 7)
    change(copy, b"k", b"one", 0)
    unknown = TableCall(0, "put", b"k", b"one", None, 0)
    never = TableCall(1, "put", b"k", b"two", None, 0)
    assert judge([unknown, never, call("get", b"one", 0, 10)], [copy]) == ([], 0)
    assert judge([unknown, call("get", b"one", 0, 10), call("get", None, -1, 20)], [copy])[0]


def test_a_seed_decides_the_faults() -> None:
    plans = [plan(list(FAULTS), 100.0, random.Random(5)) for _ in range(2)]
    assert plans[0] == plans[1]
    assert {fault.what for fault in plans[0]} == {*FAULTS, *DISK_FAULTS} - {"disk"}
    assert all(fault.at_s < 100 for fault in plans[0])


def test_a_store_has_to_be_what_its_own_log_folds_into(tmp_path: Path) -> None:
    made: dict[str, Path | int] = {}

    async def fill() -> None:
        async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
            table = await db.create_table("t", shards=1, replicas=1)
            await asyncio.gather(*(table.put(f"k{number}", b"v") for number in range(20)))
            await table.delete("k7")
            host = next(host for host in nodes.nodes[0].hosts.values() if host.table is not None)
            made["shard"], made["end"] = host.shard_id, host.log.log_end
            made["dir"] = Path(host.log.path).parents[1]

    run(fill())
    shard, end, directory = made["shard"], made["end"], made["dir"]
    assert isinstance(shard, int)
    assert isinstance(end, int)
    assert isinstance(directory, Path)

    def compare(committed: int) -> list[str]:
        return compare_stores({0: directory}, [ShardCopy("t", 0, shard, end=committed)], "t")

    assert compare(end) == []
    assert compare(end - 2) == [], "the log went on after the leader was read"
    store = str(directory / "tables" / str(shard))
    with open_state(store, RocksEngine()) as state:
        state.apply_effects([(b"k3", b"else", VERSION.pack(99, 0, 0, 0))], state.applied_offset, 100)
    assert compare(end) == ["t/0 on node 0: rows that its log does not fold into: [b'k3']"]
    with open_state(store, RocksEngine()) as state:
        state.apply_effects([], end + 5, 100)
    assert compare(end) == [f"t/0 on node 0: applied up to {end + 5}, its log ends at {end}"]


def test_unknown_faults_are_refused_with_those_there_are() -> None:
    assert parse_faults("kill, pause") == ["kill", "pause"]
    assert parse_faults("none") == []
    assert parse_faults("disk,partition") == ["disk", "partition"]
    for text in ("flood", "kill,fire", ""):
        with pytest.raises(InvalidRequestError, match=r"kill: .*pause: "):
            parse_faults(text)


@pytest.mark.slow
@pytest.mark.cluster
def test_nothing_is_lost_under_load_while_nodes_networks_and_disks_fail() -> None:
    command = (*COMMAND, "verify", "--seconds", "12", "--seed", "7", "--json")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert ended.stdout, (ended.returncode, ended.stderr)
    found = json.loads(ended.stdout)
    broken = [check for check in found["checks"] if check["problems"]]
    assert (ended.returncode, broken) == (0, []), ended.stderr
    assert found["faults"]
    assert found["operations"]["appends"]["ok"] > 0
    assert found["operations"]["table"]["ok"] > 0


@pytest.mark.cluster
def test_a_cluster_may_listen_elsewhere_after_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        with LocalCluster.start(3, tmp_path / "cluster") as cluster, antiphon.connect(cluster.native) as db:
            db.create_topic(f"t{number}", timeout_s=20)


@pytest.mark.cluster
def test_no_node_is_left_when_the_command_is_ended_at_once(tmp_path: Path) -> None:
    """SIGTERM may come the moment that the cluster is announced, or before."""
    command = (
        *COMMAND,
        "up",
        "--dir",
        str(tmp_path / "c"),
        "--json",
        "--kafka-port",
        "0",
        "--native-port",
        "0",
        "--oxia-port",
        "0",
    )
    with subprocess.Popen((*command, "--http-port", "0"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        nodes = json.loads(process.stdout.readline())["nodes"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with subprocess.Popen((*command, "--http-port", "0"), stdout=subprocess.DEVNULL) as process:
        pid_file = tmp_path / "c" / "node-0" / "node.pid"
        before, deadline = pid_file.read_text(), time.monotonic() + 30
        while pid_file.read_text() in {before, ""} and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert all(running_pid(Path(node["dir"])) is None for node in nodes)
