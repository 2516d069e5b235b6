"""`antiphon consume` and `kv watch`: what is followed, waited for, chosen and shown."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import antiphon
from antiphon.cli.record_lines import RecordLines, indented
from antiphon.cli.times import since_ms
from antiphon.records.decode import Record
from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.merged_reads import MergedReads, NothingCameError
from tests.cli.shell import Terminal
from tests.cli.test_commands import Shell
from tests.coroutines import on_a_loop

INTERRUPT = "\x03"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.start(nodes=1, directory=tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def shell(cluster: LocalCluster) -> Shell:
    return Shell(cluster)


def _record(offset: int, value: bytes = b"v") -> Record:
    return Record(offset, 0, None, value, ())


async def _pieces(*sizes: int) -> AsyncGenerator[Sequence[Record], None]:
    for size in sizes:
        yield [_record(0)] * size


@on_a_loop
async def test_shards_take_turns_however_much_one_has() -> None:
    reads = MergedReads({0: _pieces(*[1] * 5), 1: _pieces(1, 1), 2: _pieces(1)})
    order = []
    while (piece := await reads.following(1)) is not None:
        order.append(piece[0])
        for _ in range(3):
            await asyncio.sleep(0)
    await reads.close()
    assert order[:5] == [0, 1, 2, 0, 1]
    assert order.count(0) == 5


@on_a_loop
async def test_what_a_reader_fails_with_comes_after_what_the_others_have() -> None:
    async def failing() -> AsyncGenerator[Sequence[Record], None]:
        yield [_record(0)]
        raise antiphon.errors.OffsetOutOfRangeError("gone")

    reads = MergedReads({0: failing(), 1: _pieces(1)})
    assert {(await reads.following(1) or [9])[0], (await reads.following(1) or [9])[0]} == {0, 1}
    with pytest.raises(antiphon.errors.OffsetOutOfRangeError):
        await reads.following(1)
    await reads.close()


@on_a_loop
async def test_a_time_out_of_the_client_is_not_taken_for_silence() -> None:
    async def failing() -> AsyncGenerator[Sequence[Record], None]:
        yield [_record(0)]
        raise antiphon.errors.TimedOutError("no leader")

    async def silent() -> AsyncGenerator[Sequence[Record], None]:
        await asyncio.Event().wait()
        yield []

    reads = MergedReads({0: failing()})
    assert await reads.following(1) is not None
    with pytest.raises(antiphon.errors.TimedOutError):
        await reads.following(1)
    await reads.close()
    reads = MergedReads({0: silent()})
    with pytest.raises(NothingCameError):
        await reads.following(0.001)
    await reads.close()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"a":1,"b":[2]}', b'{\n  "a": 1,\n  "b": [\n    2\n  ]\n}'),
        (b'  ["\xc3\xa9"]', b'[\n  "\xc3\xa9"\n]'),
        (b"17", b"17"),
        (b"{not json", b"{not json"),
        (b"{\xff}", b"{\xff}"),
        (b"", b""),
    ],
)
def test_json_documents_are_indented_and_nothing_else(value: bytes, shown: bytes) -> None:
    assert indented(value) == shown


@pytest.mark.parametrize(("text", "ago_s"), [("10m", 600), ("2h", 7200), ("500ms", 0.5), ("1 d", 86_400)])
def test_how_long_ago(text: str, ago_s: float) -> None:
    assert abs(time.time() - ago_s - since_ms(text) / 1000) < 60


def test_times_in_iso() -> None:
    assert since_ms("1970-01-01T00:01:00Z") == since_ms("1970-01-01T01:01:00+01:00") == 60_000
    assert since_ms("1970-01-02") == 86_400_000


def test_the_version_of_a_row_is_decoded(capfd: pytest.CaptureFixture[str]) -> None:
    packed = b"".join(number.to_bytes(8, "big") for number in (7, 2, 1000, 2000))
    lines = RecordLines("t", keys=False, as_json=True, pretty=False, shards=False)
    lines.write(0, Record(3, 5, b"k", None, (("v", packed),)))
    lines.write(0, Record(4, 5, b"k", None, (("v", b"7"),)))
    row, other = map(json.loads, capfd.readouterr().out.splitlines())
    assert row["version"] == {"id": 7, "modifications": 2, "created_ms": 1000, "modified_ms": 2000}
    assert "version" not in other


@pytest.mark.cluster
def test_shards_are_followed_together(shell: Shell) -> None:
    shell.ok("topic", "create", "four", "--shards", "4")
    for shard in (0, 2, 3):
        shell.ok("produce", "four", "--shard", str(shard), stdin=f"in {shard}\n")
    assert shell.ok("consume", "four") == "in 0\nin 2\nin 3\n", "without --follow as it was"
    words = ("consume", "four", "--follow", "--count", "3")
    assert sorted(shell.ok(*words).splitlines()) == ["0\tin 0", "2\tin 2", "3\tin 3"]
    rows = [json.loads(line) for line in shell.ok(*words, "--json").splitlines()]
    assert sorted(row["shard"] for row in rows) == [0, 2, 3]
    assert shell.ok("consume", "four", "-f", "--shard", "2", "--count", "1") == "in 2\n"
    began = time.monotonic()
    done = shell.run("consume", "four", "-f", "--from", "-1", "--timeout", "0.3")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "nothing came for 0.3 s" in done.stderr
    assert time.monotonic() - began < 30


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["idle-one", "idle-three"])
def test_an_interrupt_ends_a_consumer_that_waits(shell: Shell, name: str) -> None:
    shell.ok("topic", "create", name, "--shards", "1" if name == "idle-one" else "3")
    shell.ok("produce", name, stdin="seen\n")
    with Terminal("consume", name, "-f", environment=shell.environment) as screen:
        screen.until_written("seen")
        time.sleep(0.7)  # it waits for the next record by now
        screen.type(INTERRUPT)
        assert screen.ended(20) == 130, screen.written
        assert "Traceback" not in screen.written
        assert "rror" not in screen.written, "not a word"


@pytest.mark.cluster
def test_records_are_waited_for_up_to_an_offset(shell: Shell) -> None:
    shell.ok("produce", "three", stdin="a\nb\nc\n")
    assert shell.ok("consume", "three", "--to", "2") == "a\nb\n"
    done = shell.run("consume", "three", "--to", "5", "--timeout", "0.4")
    assert (done.returncode, done.stdout) == (1, "a\nb\nc\n")
    assert "three shard 0 ends at 3: waiting for offset 4, until nothing came for 0.4 s" in done.stderr
    assert "three shard 0 ends at 3, before --to 5" in done.stderr
    with Terminal("consume", "three", "--to", "4", environment=shell.environment) as screen:
        screen.until_written("waiting for offset 3")
        shell.ok("produce", "three", stdin="d\n")
        assert screen.ended(20) == 0, screen.written
        assert screen.written.endswith("d\r\n")


@pytest.mark.cluster
def test_records_are_chosen_by_key_and_by_time(shell: Shell, cluster: LocalCluster) -> None:
    with antiphon.connect(cluster.native) as db:
        db.create_topic("chosen")
        log = db.topic("chosen")
        for number, key in enumerate((b"a1", b"b1", None, b"a2")):
            log.append(b"%d" % number, key=key, timestamp_ms=1_700_000_000_000 + number * 1000)
        log.append(b"now", key=b"a1")
    assert shell.ok("consume", "chosen", "--key", "a1") == "0\nnow\n"
    assert shell.ok("consume", "chosen", "--key-prefix", "a", "--count", "2", "-k") == "a1\t0\na2\t3\n"
    assert shell.ok("consume", "chosen", "--since", "2023-11-14T22:13:22Z") == "2\n3\nnow\n"
    assert shell.ok("consume", "chosen", "--since", "5m") == "now\n"


@pytest.mark.cluster
def test_it_begins_with_the_first_record_that_is_still_there(shell: Shell, cluster: LocalCluster) -> None:
    with antiphon.connect(cluster.native) as db:
        db.create_topic("trimmed")
        log = db.topic("trimmed")
        log.append_batch([b"a", b"b"], shard=0)
        admin = AdminClient({"bootstrap.servers": cluster.kafka})
        deleted = admin.delete_records([TopicPartition("trimmed", 0, 1)])
        assert [one.result(20).low_watermark for one in deleted.values()] == [1]
        log.append(b"c", shard=0)
    assert shell.ok("consume", "trimmed") == "b\nc\n"
    assert "outside the shard's log" in shell.refused("consume", "trimmed", "--from", "0")


@pytest.mark.cluster
def test_json_in_a_terminal_has_a_line_for_each_part(shell: Shell) -> None:
    shell.ok("produce", "documents", stdin='{"a": 1}\n')
    assert shell.ok("consume", "documents") == '{"a": 1}\n', "programs read what was written"
    assert shell.ok("consume", "documents", "--pretty") == '{\n  "a": 1\n}\n'
    with Terminal("consume", "documents", environment=shell.environment) as screen:
        assert screen.ended(20) == 0
        assert '{\r\n  "a": 1\r\n}\r\n' in screen.written


@pytest.mark.cluster
def test_a_watch_begins_where_it_is_told_to(shell: Shell) -> None:
    shell.ok("table", "create", "watched")
    for key, value in (("a1", "1"), ("b1", "2"), ("a2", "3"), ("a1", "4")):
        shell.ok("kv", "watched", "put", key, value)
    watch = ("kv", "watched", "watch")
    assert shell.ok(*watch, "--from", "-2", "--prefix", "a", "--count", "3") == (
        "created\ta1\t1\ncreated\ta2\t3\nmodified\ta1\t4\n"
    )
    rows = [json.loads(line) for line in shell.ok("consume", "watched", "--json", "--key", "a2").splitlines()]
    assert rows[0]["version"]["id"] == json.loads(shell.ok("kv", "watched", "get", "a2", "--json"))["version"]
    at = rows[0]["offset"]
    assert shell.ok(*watch, "--from", str(at), "--count", "1") == "created\ta2\t3\n"
    assert shell.ok(*watch, "--from", json.dumps({"0": at}), "--count", "1") == "created\ta2\t3\n"
    assert shell.ok(*watch, "--since", "1h", "--count", "1") == "created\ta1\t1\n"
    assert "shards 0 to 0" in shell.refused(*watch, "--from", '{"7": 1}', code=2)
