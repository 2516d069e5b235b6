"""What a node knows to be wrong, however many healthy replicas it has."""

import asyncio
import re
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from antiphon.errors import DamagedLogError, StorageFailedError
from antiphon.log.disk import read_whole, replace_file
from antiphon.log.recovery import DamageReport
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.findings import AUDIT_TEXT_MAX, KINDS, OF_NODE, AuditNote, NoteAudit
from antiphon.model.requests import CreateTopic
from antiphon.node import findings
from antiphon.node.audit_notes import SHARDS_MAX, AuditNotes, load_notes
from antiphon.node.first_seen import BOOK_NAME, SETTLED_MS, FirstSeen
from antiphon.node.node import Node
from tests.node.in_process import DIRECTORY, Nodes, ask, cluster_of, eventually, in_virtual_time

SHARDS = 120


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards whose replicas were asked how they are."""
    found: list[int] = []
    at_once = findings._state_of

    def state_of(shard_id: int, host: Any) -> Any:
        found.append(shard_id)
        return at_once(shard_id, host)

    monkeypatch.setattr(findings, "_state_of", state_of)
    return found


async def many_shards(nodes: Nodes) -> list[int]:
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", shards=SHARDS, replicas=1))
    shards = [shard.shard_id for shard in topic.shards]
    for shard_id in shards:
        await nodes.leader(shard_id)
    return shards


def kinds(node: Node) -> dict[int, str]:
    return {one.shard_id: one.kind for one in node.care.findings.now}


@in_virtual_time
async def test_a_look_asks_few_of_many_healthy_replicas_and_all_of_them_in_turn(asked: list[int]) -> None:
    async with cluster_of(1) as nodes:
        shards = await many_shards(nodes)
        node = nodes.nodes[0]
        node.care.findings.look()
        asked.clear()
        node.care.findings.look()
        assert len(asked) <= findings.OTHERS < SHARDS
        for _ in range(2 * len(node.hosts) // findings.OTHERS):
            node.care.findings.look()
        assert set(shards) <= set(asked)


@in_virtual_time
async def test_a_replica_that_stops_is_told_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(1) as nodes:
        shards = await many_shards(nodes)
        node = nodes.nodes[0]
        monkeypatch.setattr(findings, "OTHERS", 0)  # nobody finds it by chance
        node.care.findings.look()
        node.hosts[shards[7]].driver.fail(StorageFailedError("the disk failed"))
        await eventually(lambda: kinds(node) == {shards[7]: "replica_stopped"}, 3.0)
        node.care.findings.look()
        assert kinds(node) == {shards[7]: "replica_stopped"}, "and for as long as it is so"


@in_virtual_time
async def test_a_damaged_replica_is_told_from_its_opening_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of(3) as nodes:
        monkeypatch.setattr(findings, "OTHERS", 0)
        shard_id = await nodes.new_shard(replicas=3)
        for number in range(4):
            await nodes.append(shard_id, b"%d" % number)
        leader = (await nodes.leader(shard_id)).services.node_id
        node = nodes.nodes[(leader + 1) % 3]
        host = node.hosts[shard_id]
        await eventually(lambda: host.log.durable_end >= 4)
        await nodes.stop((leader + 2) % 3)  # two of three, of which one is damaged, elect nobody
        host.log.note_damage(DamageReport(2, host.log.path, 0, "the disk lost it"))
        host.driver.fail(DamagedLogError("the disk lost it", offset=2, position=0))
        await eventually(lambda: kinds(node).get(shard_id) == "log_damaged")
        nodes.kill(node.node_id)
        node = await nodes.start(node.node_id)
        await eventually(lambda: kinds(node).get(shard_id) == "log_damaged")
        await nodes.start((leader + 2) % 3)
        await eventually(lambda: node.hosts[shard_id].status().state == "ok")
        await eventually(lambda: shard_id not in kinds(node))


@in_virtual_time
async def test_what_an_audit_found_stays_until_an_audit_finds_nothing_over_restarts_too() -> None:
    async with cluster_of(3) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", shards=2))
        first, second = (shard.shard_id for shard in topic.shards)
        node, address = nodes.nodes[1], nodes.members[1].native
        told = (AuditNote(first, "t/0 at offset 3: differs"), AuditNote(second, "t/1: row_differs"))
        await ask(address, NoteAudit((first, second), told))
        assert kinds(node) == {first: "audit_differs", second: "audit_differs"}
        assert [one.what for one in node.care.findings.now] == [one.what for one in told]
        await ask(address, NoteAudit((second,)))
        assert kinds(node) == {first: "audit_differs"}
        nodes.kill(1)
        node = await nodes.start(1)
        await eventually(lambda: kinds(node) == {first: "audit_differs"})
        await ask(address, NoteAudit((first, second)))
        assert kinds(node) == {}
        assert node.care.findings.all[-1].mended_ms > 0
        nodes.kill(1)
        node = await nodes.start(1)
        await asyncio.sleep(1)
        assert kinds(node) == {}


@in_virtual_time
async def test_what_an_audit_found_is_written_again_after_a_write_that_failed() -> None:
    """Also if it is the same: what is known was changed in memory by the request that failed."""
    async with cluster_of(1) as nodes:
        node, address = nodes.nodes[0], nodes.members[0].native
        await ask(address, NoteAudit((7,), (AuditNote(7, "differs"),)))
        with patch.object(AuditNotes, "_write", side_effect=OSError("no space")):
            with pytest.raises(StorageFailedError):
                await ask(address, NoteAudit((7,)))
            with pytest.raises(StorageFailedError):
                await ask(address, NoteAudit((7,)))
        await ask(address, NoteAudit((7,)))
        assert load_notes(nodes.disks[0], f"{DIRECTORY}/audit") == {}
        nodes.kill(0)
        node = await nodes.start(0)
        assert kinds(node) == {}


@in_virtual_time
async def test_since_when_something_is_known_outlives_a_restart_and_ends_with_it() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(replicas=3)
        await nodes.append(shard_id, b"0")
        leader = (await nodes.leader(shard_id)).services.node_id
        node = nodes.nodes[(leader + 1) % 3]
        host = node.hosts[shard_id]
        await eventually(lambda: host.log.durable_end >= 1)
        await nodes.stop((leader + 2) % 3)
        host.log.note_damage(DamageReport(0, host.log.path, 0, "the disk lost it"))
        host.driver.fail(DamagedLogError("the disk lost it", offset=0, position=0))
        await eventually(lambda: kinds(node).get(shard_id) == "log_damaged")
        (known,) = (one for one in node.care.findings.now if one.shard_id == shard_id)
        await asyncio.sleep(5)
        for ends in (nodes.stop, nodes.kill):
            done = ends(node.node_id)
            if done is not None:
                await done
            node = await nodes.start(node.node_id)
            await eventually(lambda: kinds(node).get(shard_id) == "log_damaged")  # noqa: B023
            (again,) = (one for one in node.care.findings.now if one.shard_id == shard_id)
            assert again.since_ms == known.since_ms
            text = node.metrics.render().decode()
            assert 'antiphon_findings{kind="log_damaged"} 1.0' in text
            since = 'antiphon_findings_oldest_timestamp_seconds{kind="log_damaged"} '
            told = next(line for line in text.splitlines() if line.startswith(since))
            assert float(told.removeprefix(since)) == pytest.approx(known.since_ms / 1000)
            assert text.count("antiphon_findings{") == len(KINDS)
        await nodes.start((leader + 2) % 3)
        await eventually(lambda: shard_id not in kinds(node))
        await asyncio.sleep(2)
        book = read_whole(nodes.disks[node.node_id], f"{DIRECTORY}/{BOOK_NAME}")
        assert book is not None
        assert f'"{shard_id} "'.encode() not in book, "what was mended begins anew the next time"


def test_what_is_not_found_again_is_forgotten() -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs("/n")
    first = FirstSeen(disk, "/n")
    for key in ((OF_NODE, "disk_full"), (OF_NODE, "not_joined"), (7, ""), (8, ""), (9, "")):
        first.since_ms(key, 1000)
    news = first.news(1000)
    assert news is not None
    first.write(news)
    assert first.news(1001) is None
    again = FirstSeen(disk, "/n")
    assert again.news(5000) is None
    assert again.since_ms((OF_NODE, "disk_full"), 6000) == 1000
    assert again.since_ms((8, ""), 6000) == 1000
    again.read_whole(7)
    again.read_whole(8)  # it is known to be wrong
    assert again.since_ms((9, ""), 500) == 500, "the clock was set back"
    found = again.news(5001 + SETTLED_MS)
    assert found == {f"{OF_NODE} disk_full": 1000, "8 ": 1000, "9 ": 500}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"1 ":"x"}'])
def test_a_book_that_cannot_be_read_is_empty(content: bytes) -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs("/n")
    replace_file(disk, f"/n/{BOOK_NAME}", content)
    assert FirstSeen(disk, "/n").since_ms((1, ""), 77) == 77


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"x":"y"}', b'{"1":2}'])
def test_notes_of_audits_that_cannot_be_read_are_none(content: bytes) -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs("/n")
    replace_file(disk, "/n/audit", content)
    assert load_notes(disk, "/n/audit") == {}


def test_notes_of_audits_are_bounded() -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs("/n")
    many = msgspec.json.encode(dict.fromkeys(range(2 * SHARDS_MAX), "x" * 2 * AUDIT_TEXT_MAX))
    replace_file(disk, "/n/audit", many)
    found = load_notes(disk, "/n/audit")
    assert (len(found), {len(what) for what in found.values()}) == (SHARDS_MAX, {AUDIT_TEXT_MAX})


def test_every_kind_is_listed() -> None:
    """The metrics have a series for each from the start."""
    source = Path(findings.__file__).parent
    told = {
        name for file in source.glob("*.py") for name in re.findall(r'Noted\(\s*"(\w+)"', file.read_text())
    }
    assert told <= set(KINDS)
