"""What judges a table that loses most replicas: it follows splits, and still finds what is not as the logs have it."""

from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.model.metadata import key_hash
from antiphon.records.builder import build_batch
from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.records.split_entries import Freeze, Inherit, Release, SplitEntry, build_split_entry
from antiphon.simulation.cluster.truth import Batch
from antiphon.simulation.cluster.workloads import recovered_rows
from antiphon.simulation.cluster.workloads.recovered_history import Begun, RecoveredTable
from antiphon.simulation.violation import ViolationError

PARENT, CHILD = 5, 8
LOW, HIGH = sorted((b"aisle", b"bay"), key=key_hash)
FIRST = key_hash(HIGH)
PUT = (HIGH, b"later", 3)


class Logs:
    """Committed logs of a table, its metadata, and recoveries."""

    def __init__(self) -> None:
        self.truths: dict[int, list[Batch]] = {PARENT: [], CHILD: []}
        self.recovered: dict[int, int] = {}
        self.lost: dict[int, set[bytes]] = {}
        self.joined = False
        recoveries = SimpleNamespace(number=lambda one: self.recovered.get(one, 0), lost=self.lost)
        recoveries.led = recoveries.number
        self.watch = SimpleNamespace(recoveries=recoveries)
        self.evidence = SimpleNamespace(truth=self._truth)
        self.nodes = [SimpleNamespace(view=SimpleNamespace(cluster=self._metadata))]

    def _truth(self, shard_id: int) -> Any:
        return SimpleNamespace(batches=self.truths[shard_id], end=len(self.truths[shard_id]))

    def _metadata(self) -> Any:
        child = SimpleNamespace(shard_id=CHILD, split=None, hashes=(FIRST, 1 << 32))
        topic = SimpleNamespace(name="recovered-rows", shards=[child] if self.joined else [])
        return SimpleNamespace(topics=[topic], recovery=None, version=1)

    def _add(self, shard_id: int, data: bytearray) -> None:
        end = len(self.truths[shard_id])
        self.truths[shard_id].append(Batch(end, end + 1, 1, 0, bytes(data)))

    def put(self, shard_id: int, *rows: tuple[bytes, bytes | None, int]) -> None:
        records = [
            (key, value, [(VERSION_HEADER, VERSION.pack(version, 0, 0, 0))], 0)
            for key, value, version in rows
        ]
        self._add(shard_id, build_batch(records))

    def say(self, shard_id: int, entry: SplitEntry) -> None:
        self._add(shard_id, build_split_entry(entry, 1, len(self.truths[shard_id]), 0))


def split() -> Logs:
    """Two rows, a split, and a put of the key that went to the child."""
    logs = Logs()
    logs.put(PARENT, (LOW, b"low", 0))
    logs.put(PARENT, (HIGH, b"high", 1))
    logs.put(PARENT, (HIGH, b"higher", 2))
    logs.put(
        CHILD, (HIGH, b"high", 1), (HIGH, None, 1), (HIGH, b"higher", 2)
    )  # what was copied, and followed
    logs.say(PARENT, Freeze(FIRST, CHILD))
    logs.say(CHILD, Inherit(FIRST, (1 << 32) - 1, PARENT, 3, 3))
    logs.say(PARENT, Release(3, FIRST, CHILD, 2))
    logs.put(CHILD, PUT)
    return logs


def table(logs: Logs) -> RecoveredTable:
    return RecoveredTable(logs, "recovered-rows", PARENT)  # type: ignore[arg-type]  # what it needs of a cluster


def test_a_scan_is_what_the_shards_of_a_split_table_come_to() -> None:
    logs = split()
    history = table(logs)
    began, now = history.ends(), {LOW: (b"low", 0, None), HIGH: (b"later", 3, None)}
    assert history.misfit(now, began) == ""
    assert history.misfit({**now, HIGH: (b"higher", 2, None)}, began), "that was before the scan began"
    assert history.misfit({LOW: now[LOW]}, began), "a row of the child is missing"
    assert history.misfit({HIGH: now[HIGH]}, began), "a row of the parent is missing"
    assert history.misfit({**now, HIGH: (b"later", 2, None)}, began), "that is another version"
    assert history.misfit({HIGH: now[HIGH]}, {PARENT: 0}) == "", "it was split meanwhile"


def test_versions_are_each_puts_own_and_rise() -> None:
    logs = split()
    history = table(logs)
    history.read()
    assert history.folds[CHILD].versions == {b"high": 1, b"higher": 2, b"later": 3}
    copies = Logs()
    copies.put(CHILD, (HIGH, b"high", 7), (LOW, b"low", 4))
    copies.joined = True
    table(copies).read()  # those come in the order of the keys
    logs.put(CHILD, (HIGH, b"again", 3))
    with pytest.raises(ViolationError, match="versions-go-on"):
        history.read()


def test_a_recovery_that_loses_the_release_leaves_the_keys_where_the_metadata_has_them() -> None:
    logs = split()
    history = table(logs)
    logs.truths[PARENT] = logs.truths[PARENT][:3]
    logs.recovered[PARENT] = 1
    assert history.read() == {PARENT: 0}, "nobody has heard of a child"
    logs.joined = True
    assert history.read() == {PARENT: 0, CHILD: FIRST}
    now = {LOW: (b"low", 0, None), HIGH: (b"later", 3, None)}
    assert history.misfit(now, history.ends()) == ""
    assert history.misfit({**now, HIGH: (b"higher", 2, None)}, history.ends()), "the parent's is of the past"


def judged(logs: Logs, *told: tuple[bytes, int], begun: dict[bytes, Begun] | None = None) -> None:
    workload = recovered_rows.RecoveredRowsWorkload.__new__(recovered_rows.RecoveredRowsWorkload)
    workload.shard_id, workload._history = PARENT, table(logs)
    workload._told, workload._refused, workload._begun = dict(told), set(), begun or {}
    workload.outcomes = {"rows-lost": 0, "rows-beside-a-split": 0}
    workload.check()


def test_what_clients_were_told_of_is_in_some_shard_or_is_lost() -> None:
    logs = split()
    judged(logs, (b"low", 0), (b"higher", 2), (b"later", 3))
    for told in ((b"later", 2), (b"never", 4)):
        with pytest.raises(ViolationError, match="rows-kept"):
            judged(logs, told)
    logs.lost[CHILD] = {b"never"}
    judged(logs, (b"never", 4))
    logs.put(CHILD, (HIGH, b"low", 9))
    with pytest.raises(ViolationError, match="rows-kept"):
        judged(logs, (b"low", 0))  # it was carried out twice


def test_a_put_is_in_the_log_of_the_shard_that_had_its_key() -> None:
    logs, history = split(), table(split())
    assert history.begun(HIGH) == Begun(FIRST, 0), "nobody has heard of a child"
    logs.truths[PARENT] = logs.truths[PARENT][:3]
    logs.put(PARENT, (HIGH, b"stray", 3))  # the release is lost, and who put this had not heard of the split
    logs.joined = True
    assert table(logs).begun(HIGH) == Begun(FIRST, FIRST)
    assert table(logs).begun(LOW) == Begun(key_hash(LOW), 0)
    judged(logs, (b"stray", 3), begun={b"stray": Begun(FIRST, 0)})
    judged(logs, (b"later", 3), begun={b"later": Begun(FIRST, FIRST)})
    with pytest.raises(ViolationError, match="rows-in-their-shard"):
        judged(logs, (b"stray", 3), begun={b"stray": Begun(FIRST, FIRST)})
