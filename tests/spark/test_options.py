"""Options: what is accepted, and what a wrong one is told."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.spark.offset_options import EARLIEST, LATEST, OffsetSpec
from antiphon.spark.option_values import COMMON, READ, WRITE, parse_servers
from antiphon.spark.read.keys import KeyRange
from antiphon.spark.read.options import parse_read, parse_shape
from antiphon.spark.write.options import parse_write

BASE = {"servers": "127.0.0.1:7400,other:7401", "topic": "flights"}
TABLE = {"servers": "127.0.0.1:7400", "table": "aircraft"}


def test_defaults_of_a_batch_read() -> None:
    options = parse_read(BASE, streaming=False)
    assert options.target.servers == (("127.0.0.1", 7400), ("other", 7401))
    assert (options.mode, options.isolation, options.fail_on_data_loss) == ("log", "committed", True)
    assert options.starting == OffsetSpec(EARLIEST)
    assert options.ending == OffsetSpec(LATEST)


def test_a_stream_starts_at_the_end_and_a_table_is_read_by_its_changes() -> None:
    assert parse_read(BASE, streaming=True).starting == OffsetSpec(LATEST)
    assert parse_read(TABLE, streaming=True).mode == "changes"
    assert parse_read(TABLE, streaming=False).mode == "snapshot"


def test_names_are_in_any_case() -> None:
    raw = {"SERVERS": "h:1", "Topic": "a, b", "startingoffsets": "earliest", "MAXOFFSETSPERTRIGGER": "5"}
    options = parse_read(raw, streaming=True)
    assert options.target.names == ("a", "b")
    assert options.admission.offsets_max == 5


def test_chosen_offsets() -> None:
    options = parse_read(
        {
            **BASE,
            "startingOffsets": '{"flights": {"0": 23, "1": -2}}',
            "endingOffsets": '{"flights": {"0": -1}}',
        },
        streaming=False,
    )
    assert options.starting.chosen == {"flights": {0: 23, 1: EARLIEST}}
    assert options.ending.chosen == {"flights": {0: LATEST}}


def test_the_past_of_a_table() -> None:
    assert parse_read({**TABLE, "asOfOffset": "7"}, streaming=False).as_of == OffsetSpec(
        LATEST, None, {"aircraft": {0: 7}}, is_number=True
    )
    assert parse_read({**TABLE, "asOfTimestamp": "9"}, streaming=False).as_of == OffsetSpec(LATEST, 9)


READ_ERRORS: list[tuple[dict[str, str], bool, str]] = [
    ({"topic": "a"}, False, 'give option("servers"'),
    ({"servers": "h:1"}, False, "either option"),
    ({"servers": "h:1", "topic": "a", "table": "b"}, False, "either option"),
    ({"servers": "h:1", "topic": " , "}, False, "is empty"),
    ({"servers": "h:1", "topic": "a,a"}, False, "names something twice"),
    ({**BASE, "servers": "localhost"}, False, "is not HOST:PORT"),
    ({**BASE, "startingOfset": "latest"}, False, "did you mean startingOffsets?"),
    ({**BASE, "maxOffsetPerTriger": "1"}, True, "did you mean maxOffsetsPerTrigger?"),
    ({**BASE, "subscribe": "x"}, False, "use topic"),
    ({**BASE, "subscribePattern": "x"}, False, "use topicPattern"),
    ({**BASE, "assign": "x"}, False, "use shards"),
    ({**BASE, "fetchOffset.numRetries": "3"}, False, "use retries"),
    ({**BASE, "kafka.fetch.bytes": "3"}, False, "did you mean fetchBytes?"),
    ({**BASE, "topicPattern": "x.*"}, False, "either option"),
    ({"servers": "h:1", "topicPattern": "x("}, False, "no regular expression"),
    ({"servers": "h:1", "topicPattern": ""}, False, "1 to 1000 characters"),
    ({"servers": "h:1", "shards": "[0]"}, False, 'such as {"flights": [0, 1]}'),
    ({"servers": "h:1", "shards": '{"a": []}'}, False, 'such as {"flights": [0, 1]}'),
    ({"servers": "h:1", "shards": '{"a": [0, 0]}'}, False, 'such as {"flights": [0, 1]}'),
    ({"servers": "h:1", "shards": '{"a": [true]}'}, False, 'such as {"flights": [0, 1]}'),
    ({"servers": "h:1", "shards": "{}"}, False, 'such as {"flights": [0, 1]}'),
    ({**BASE, "shards": '{"other": [0]}'}, False, "names other"),
    ({**BASE, "shards": '{"flights": [1]}', "startingOffsets": '{"flights": {"0": 3}}'}, False, "leaves out"),
    ({**BASE, "startingOffsetsByTimestamp": "yesterday"}, False, "JSON with times in ms"),
    ({**BASE, "startingOffsetsByTimestamp": '{"flights": {"0": -1}}'}, False, "JSON with times in ms"),
    ({**BASE, "startingOffsetsByTimestampStrategy": "error"}, False, "goes with startingTimestamp"),
    ({**BASE, "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"}, False, "there is error"),
    ({**BASE, "endingOffsetsByTimestamp": '{"flights": {"0": 1}}'}, True, "does not apply to a stream"),
    ({**BASE, "maxBytesPerTrigger": "5"}, False, "does not apply to a batch read"),
    ({**BASE, "maxTriggerDelay": "5s"}, True, "minOffsetsPerTrigger"),
    ({**BASE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, True, "such as 500ms, 30s or 15m"),
    ({**BASE, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, True, "is above"),
    ({**BASE, "maxRecordsPerPartition": "0"}, False, "is not within"),
    ({**BASE, "maxPartitions": "2", "minPartitions": "3"}, False, "minPartitions=3 is above maxPartitions=2"),
    ({**BASE, "maxPartitions": "2", "maxRecordsPerPartition": "3"}, False, "not both"),
    ({**BASE, "maxPartition": "2"}, False, "did you mean maxPartitions?"),
    ({**BASE, "key": "a"}, False, "does not apply to anything but a snapshot of a table"),
    ({**TABLE, "keyPrefix": "a"}, True, "does not apply to anything but a snapshot of a table"),
    ({**TABLE, "key": "a", "keyPrefix": "a"}, False, "key or keyPrefix, not both"),
    ({**TABLE, "keyPrefix": ""}, False, "keyPrefix is empty"),
    ({**TABLE, "key": "zz", "keyEncoding": "hex"}, False, "option key='zz' is not in hex"),
    ({**TABLE, "keyPrefix": "/w=?", "keyEncoding": "base64"}, False, "'/w=?' is not in base64"),
    ({**TABLE, "key": "a", "keyEncoding": "utf-8"}, False, "there is text, hex, base64"),
    ({**TABLE, "keyEncoding": "hex"}, False, "give one of them, too"),
    ({**TABLE, "keyEncoding": "hex"}, True, "does not apply to anything but a snapshot of a table"),
    ({**TABLE, "keyPrefx": "a"}, False, "did you mean keyPrefix?"),
    ({**TABLE, "keyFormat": "hex"}, False, "there is binary, string"),
    ({**TABLE, "asOfTimestamp": "noon"}, False, "such as 2026-03-01T12:00:00Z, not 'noon'"),
    ({**BASE, "startingTimestamp": "-1"}, False, "is not within"),
    ({**BASE, "endingTimestamp": "1969-12-31T23:59:59Z"}, False, "is before 1970"),
    ({**TABLE, "timestampAsOf": "x"}, False, "use asOfTimestamp"),
    ({**BASE, "columns": "key,key"}, False, "twice"),
    ({**BASE, "columns": ","}, False, "is empty"),
    ({**BASE, "readFrom": "anyone"}, False, "there is leader, follower"),
    ({**BASE, "readFrom": "follower", "isolation": "uncommitted"}, False, "the leader only"),
    ({**BASE, "format": "cdf"}, False, "changes of a table"),
    ({**TABLE, "format": "avro"}, False, "there is raw, cdf, debezium"),
    ({**TABLE, "format": "cdf", "mode": "snapshot"}, False, "leave mode=snapshot out"),
    ({**TABLE, "format": "cdf", "tombstones": "true"}, True, "format=debezium"),
    ({**TABLE, "readFrom": "follower"}, False, "a snapshot of a table"),
    ({**BASE, "kafka.bootstrap.servers": "x"}, False, "use servers"),
    ({**BASE, "qqqqqqqqq": "x"}, False, "there is servers, topic"),
    ({**BASE, "txnId": "x"}, False, "does not apply to a read"),
    ({**BASE, "startingOffsets": "yesterday"}, False, '{"flights": {"0": 23}}'),
    ({**BASE, "startingOffsets": '{"flights": 3}'}, False, '{"flights": {"0": 23}}'),
    ({**BASE, "startingOffsets": '{"flights": {"0": true}}'}, False, '{"flights": {"0": 23}}'),
    ({**BASE, "startingOffsets": '{"flights": {"0": -3}}'}, False, '{"flights": {"0": 23}}'),
    ({**BASE, "startingOffsets": '{"flights": {"-1": 3}}'}, False, '{"flights": {"0": 23}}'),
    ({**BASE, "startingOffsets": '{"other": {"0": 3}}'}, False, "names 'other'"),
    ({**BASE, "topic": "a,b", "startingOffsets": '{"a": {"0": 3}}'}, False, "says nothing of b"),
    ({**BASE, "endingOffsets": "earliest"}, False, "cannot be earliest"),
    ({**BASE, "startingOffsets": "latest", "startingTimestamp": "1"}, False, "not both"),
    ({**BASE, "endingOffsets": "latest"}, True, "does not apply to a stream"),
    ({**BASE, "maxOffsetsPerTrigger": "5"}, False, "does not apply to a batch read"),
    ({**BASE, "minPartitions": "0"}, False, "not within 1..100000"),
    ({**BASE, "minPartitions": "many"}, False, "whole number"),
    ({**BASE, "failOnDataLoss": "maybe"}, False, "true or false"),
    ({**BASE, "isolation": "serializable"}, False, "there is committed, uncommitted"),
    ({**BASE, "isolation": "uncommitted"}, True, "exactly once"),
    ({**BASE, "mode": "changes"}, False, "for tables"),
    ({**BASE, "asOfOffset": "1"}, False, "anything but a snapshot"),
    ({**TABLE, "mode": "state"}, False, "there is changes, snapshot"),
    ({**TABLE, "mode": "snapshot"}, True, "cannot be streamed"),
    ({**TABLE, "startingOffsets": "earliest"}, False, "mode=changes"),
    ({**TABLE, "includeHeaders": "true"}, True, "columns are fixed"),
    ({**TABLE, "asOfOffset": "1", "asOfTimestamp": "1"}, False, "not both"),
]


@pytest.mark.parametrize(("raw", "streaming", "message"), READ_ERRORS)
def test_wrong_read_options_name_the_right_one(raw: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_read(raw, streaming=streaming)
    assert message in caught.value.message


WRITE_ERRORS: list[tuple[dict[str, str], bool, str]] = [
    ({**BASE, "topic": "a,b"}, False, "one topic"),
    ({**BASE, "startingOffsets": "latest"}, True, "does not apply to a write"),
    ({**BASE, "txnId": "x"}, True, "does not apply to a stream"),
    ({**BASE, "txnVersion": "1"}, False, "give that too"),
    ({**BASE, "txnAppId": "x"}, False, "use txnId"),
    ({**BASE, "compression": "lzma"}, True, "there is none, gzip"),
    ({**TABLE, "compression": "zstd"}, True, "does not apply to a table"),
    ({**BASE, "batchRow": "3"}, True, "did you mean batchRows?"),
    ({**BASE, "protocol": "fast"}, True, "there is staged, direct"),
    ({**BASE, "protcol": "direct"}, False, "did you mean protocol?"),
]


@pytest.mark.parametrize(("raw", "streaming", "message"), WRITE_ERRORS)
def test_wrong_write_options_name_the_right_one(raw: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_write(raw, streaming=streaming)
    assert message in caught.value.message


def test_every_option_has_a_row_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(COMMON + READ + WRITE) - told == set()


def test_sparks_own_options_pass() -> None:
    raw: dict[str, Any] = {**BASE, "checkpointlocation": "/tmp/c", "queryname": "q"}
    assert parse_write(raw, streaming=True).checkpoint == "/tmp/c"


def test_columns_need_no_more_than_the_target() -> None:
    assert parse_shape({**BASE, "includeHeaders": "true", "maxOffsetsPerTrigger": "3"}).include_headers
    assert parse_shape(TABLE).is_table


def test_an_ipv6_address() -> None:
    assert parse_servers("[::1]:7400") == (("::1", 7400),)


def test_shards_name_topics() -> None:
    options = parse_read({"servers": "h:1", "shards": '{"a": [0, 2], "b": [1]}'}, streaming=True)
    assert (options.target.names, options.target.shards) == (("a", "b"), {"a": (0, 2), "b": (1,)})


def test_offsets_of_a_streams_progress_may_be_pasted() -> None:
    raw = {**BASE, "startingOffsets": '{"flights": {"0": 23, "id": "00ff"}}'}
    assert parse_read(raw, streaming=True).starting.chosen == {"flights": {0: 23}}


def test_times_by_shard() -> None:
    raw = {
        **BASE,
        "startingOffsetsByTimestamp": '{"flights": {"0": 1000}}',
        "startingOffsetsByTimestampStrategy": "error",
    }
    spec = parse_read(raw, streaming=False).starting
    assert (spec.chosen_ms, spec.is_strict, spec.only_chosen) == ({"flights": {0: 1000}}, True, True)


def test_a_format_means_changes() -> None:
    for name in ("cdf", "debezium"):
        options = parse_read({**TABLE, "format": name}, streaming=False)
        assert (options.mode, options.format) == ("changes", name)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1767323045006", 1_767_323_045_006),
        ("2026-01-02T03:04:05.006Z", 1_767_323_045_006),
        ("2026-01-02T03:04:05.006", 1_767_323_045_006),
        ("2026-01-02T05:04:05.006+02:00", 1_767_323_045_006),
        ("2026-01-02 03:04:05.006", 1_767_323_045_006),
        (str(datetime(2026, 1, 2, 3, 4, 5, 6_000, tzinfo=UTC)), 1_767_323_045_006),
        ("2026-01-02", 1_767_312_000_000),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_a_time_is_a_number_or_text(text: str, ms: int) -> None:
    assert parse_read({**BASE, "startingTimestamp": text}, streaming=True).starting.timestamp_ms == ms
    assert parse_read({**BASE, "endingTimestamp": text}, streaming=False).ending.timestamp_ms == ms
    assert parse_read({**TABLE, "asOfTimestamp": text}, streaming=False).as_of == OffsetSpec(LATEST, ms)


def test_a_time_that_is_finer_than_a_ms_leaves_out_what_was_before_it() -> None:
    text = "2026-01-02 03:04:05.006001"
    assert (
        parse_read({**BASE, "startingTimestamp": text}, streaming=True).starting.timestamp_ms
        == 1_767_323_045_007
    )
    assert parse_read({**TABLE, "asOfTimestamp": text}, streaming=False).as_of == OffsetSpec(
        LATEST, 1_767_323_045_006
    )


def test_blanks_of_a_key_count() -> None:
    keys = parse_read({**TABLE, "key": " ä "}, streaming=False).keys
    assert keys == KeyRange(" ä ".encode(), b" \xc3\xa4 \0", is_one=True)
    assert parse_read({**TABLE, "key": ""}, streaming=False).keys == KeyRange(b"", b"\0", is_one=True)
    keys = parse_read({**TABLE, "keyPrefix": "a/ÿ"}, streaming=False).keys
    assert keys == KeyRange(b"a/\xc3\xbf", b"a/\xc3\xc0", is_one=False)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"key": "ff 00A1", "keyEncoding": "hex"}, KeyRange(b"\xff\x00\xa1", b"\xff\x00\xa1\0", is_one=True)),
        ({"key": "/wCh", "keyEncoding": "base64"}, KeyRange(b"\xff\x00\xa1", b"\xff\x00\xa1\0", is_one=True)),
        ({"keyPrefix": "01ff", "keyEncoding": "hex"}, KeyRange(b"\x01\xff", b"\x02", is_one=False)),
        ({"keyPrefix": "ffff", "keyEncoding": "hex"}, KeyRange(b"\xff\xff", b"", is_one=False)),
    ],
)
def test_keys_that_are_no_text(options: dict[str, str], found: KeyRange) -> None:
    assert parse_read({**TABLE, **options}, streaming=False).keys == found


@pytest.mark.parametrize(("text", "ms"), [("250", 250), ("5s", 5_000), ("2 min", 120_000), ("1h", 3_600_000)])
def test_times_as_spark_writes_them(text: str, ms: int) -> None:
    raw = {**BASE, "minOffsetsPerTrigger": "10", "maxTriggerDelay": text}
    admission = parse_read(raw, streaming=True).admission
    assert (admission.offsets_min, admission.delay_ms) == (10, ms)
