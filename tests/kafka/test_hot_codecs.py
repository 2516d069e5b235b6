"""Produce and Fetch by hand, against kio and kafka-python in every version that is served."""

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination.share_terms import Acquired
from antiphon.errors import ProtocolViolationError
from antiphon.kafka.api import FETCH, PRODUCE, SHARE_FETCH
from antiphon.kafka.apis import APIS
from antiphon.kafka.fetch_codec import (
    FetchRequest,
    PartitionFetched,
    TopicFetched,
    decode_fetch,
    encode_fetch,
)
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.messages.share_groups import ShareFetchRequest
from antiphon.kafka.primitives import Reader
from antiphon.kafka.produce_codec import (
    NodeEndpoint,
    PartitionProduced,
    ProduceRequest,
    decode_produce,
    encode_produce,
)
from antiphon.kafka.share_fetch_codec import ShareFetched, decode_share_fetch, encode_share_fetch
from tests.kafka.oracles import kafka_python_class, kio_bytes, kio_class, leaves, random_kio

PRODUCE_VERSIONS = range(3, APIS[PRODUCE].max_version + 1)
FETCH_VERSIONS = range(APIS[FETCH].min_version, APIS[FETCH].max_version + 1)


def header(key: int, version: int) -> RequestHeader:
    return RequestHeader(APIS[key], version, 77, "me", supported=True)


def kio_reads(api_name: str, version: int, frame: bytes) -> Any:
    """Check the frame's length and header, and let kio read the body."""
    from kio.serial import entity_reader

    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)
    cls = kio_class(api_name, version, "response")
    at = 8
    if cls.__flexible__:
        assert frame[8] == 0
        at = 9
    message, size = entity_reader(cls)(frame, at)
    assert at + size == len(frame)
    return message


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_request_of_kio(version: int) -> None:
    for seed in range(8):
        theirs = random_kio(kio_class("Produce", version, "request"), random.Random(seed))
        data = memoryview(kio_bytes(theirs))
        ours = decode_produce(Reader(data), version)
        assert ours.transactional_id == theirs.transactional_id
        assert (ours.acks, ours.timeout_ms) == (theirs.acks, next(leaves(theirs.timeout)))
        assert [
            (name, [(p.partition, None if p.records is None else bytes(p.records)) for p in partitions])
            for name, partitions in ours.topics
        ] == [(t.name, [(p.index, p.records) for p in t.partition_data]) for t in theirs.topic_data]
        for _, partitions in ours.topics:
            assert all(p.records is None or p.records.obj is data.obj for p in partitions)


outcomes = st.builds(
    PartitionProduced,
    partition=st.integers(0, 2**31 - 1),
    error_code=st.sampled_from([0, 6, 87, -1]),
    base_offset=st.integers(-1, 2**63 - 1),
    log_start_offset=st.integers(-1, 2**63 - 1),
    error_message=st.none() | st.text(max_size=200),
    leader=st.none() | st.tuples(st.integers(-1, 9), st.integers(0, 2**31 - 1)),
    record_errors=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.text(max_size=20)), max_size=3).map(tuple),
    append_time_ms=st.just(-1) | st.integers(0, 250_000_000_000_000),  # kio reads no year above 9999
)
endpoint_lists = st.lists(
    st.builds(NodeEndpoint, st.integers(0, 9), st.text(max_size=20), st.integers(0, 65535)), max_size=3
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(
    topics=st.lists(st.tuples(st.text(max_size=20), st.lists(outcomes, max_size=3)), max_size=3),
    endpoints=endpoint_lists,
)
@settings(max_examples=15, deadline=None)
def test_produce_response_is_read_by_kio(
    version: int, topics: list[tuple[str, list[PartitionProduced]]], endpoints: list[NodeEndpoint]
) -> None:
    frame = bytes(encode_produce(header(PRODUCE, version), topics, endpoints))
    read = kio_reads("Produce", version, frame)
    assert [t.name for t in read.responses] == [name for name, _ in topics]
    for (_, partitions), topic in zip(topics, read.responses, strict=True):
        for ours, theirs in zip(partitions, topic.partition_responses, strict=True):
            assert (ours.partition, ours.error_code, ours.base_offset) == (
                theirs.index, int(theirs.error_code), theirs.base_offset,
            )  # fmt: skip
            told = theirs.log_append_time
            assert ours.append_time_ms == (-1 if told is None else round(told.timestamp() * 1000))
            if version >= 5:
                assert ours.log_start_offset == theirs.log_start_offset
            if version >= 8:
                assert ours.error_message == theirs.error_message
                assert list(ours.record_errors) == [
                    (e.batch_index, e.batch_index_error_message) for e in theirs.record_errors
                ]
            if version >= 10 and ours.leader is not None:
                assert ours.leader == (theirs.current_leader.leader_id, theirs.current_leader.leader_epoch)
    if version >= 10:
        assert [tuple(e) for e in endpoints] == [
            (n.node_id, n.host, n.port, n.rack or "") for n in read.node_endpoints
        ]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_of_old_message_formats_can_be_refused(version: int) -> None:
    request_class, response_class = (kafka_python_class(f"Produce{what}") for what in ("Request", "Response"))
    topic = request_class.TopicProduceData
    request = request_class(
        version=version,
        acks=-1,
        timeout_ms=5,
        topic_data=[topic(name="t", partition_data=[topic.PartitionProduceData(index=3, records=b"old")])],
    )
    ours = decode_produce(Reader(memoryview(bytes(request.encode()))), version)
    assert (ours.acks, ours.timeout_ms, ours.topics[0][0]) == (-1, 5, "t")
    assert bytes(ours.topics[0][1][0].records or b"") == b"old"
    frame = encode_produce(header(PRODUCE, version), [("t", [PartitionProduced(3, 35)])], [])
    read = response_class.decode(bytes(frame[8:]), version=version)
    partition = read.responses[0].partition_responses[0]
    assert (partition.index, partition.error_code, partition.base_offset) == (3, 35, -1)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request_of_kio(version: int) -> None:
    for seed in range(8):
        theirs = random_kio(kio_class("Fetch", version, "request"), random.Random(seed))
        ours = decode_fetch(Reader(memoryview(kio_bytes(theirs))), version)
        assert (ours.max_wait_ms, ours.min_bytes, ours.max_bytes, ours.isolation) == (
            next(leaves(theirs.max_wait)), theirs.min_bytes, theirs.max_bytes, theirs.isolation_level,
        )  # fmt: skip
        if version >= 7:
            assert (ours.session_id, ours.session_epoch) == (theirs.session_id, theirs.session_epoch)
        for wanted, topic in zip(ours.topics, theirs.topics, strict=True):
            if version >= 13:
                assert wanted.topic_id == (topic.topic_id.bytes if topic.topic_id else bytes(16))
            else:
                assert wanted.name == topic.topic
            for mine, partition in zip(wanted.partitions, topic.partitions, strict=True):
                assert (mine.partition, mine.offset, mine.max_bytes) == (
                    partition.partition, partition.fetch_offset, partition.partition_max_bytes,
                )  # fmt: skip
                assert mine.leader_epoch == (partition.current_leader_epoch if version >= 9 else -1)


fetched_partitions = st.builds(
    lambda partition, error, high, start, chunks, leader, stable, aborted: PartitionFetched(
        partition,
        error,
        high,
        start,
        [memoryview(c) for c in chunks],
        sum(map(len, chunks)),
        leader,
        stable,
        aborted,
    ),
    st.integers(0, 2**31 - 1),
    st.sampled_from([0, 1, 6, 74]),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.lists(st.binary(min_size=1, max_size=200), max_size=3) | st.just([b"ab"] * 100),
    st.none() | st.tuples(st.integers(-1, 9), st.integers(0, 2**31 - 1)),
    st.integers(-1, 2**63 - 1),
    st.lists(st.tuples(*[st.integers(0, 2**63 - 1)] * 3), max_size=3),
)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(
    topics=st.lists(
        st.builds(
            TopicFetched,
            st.text(max_size=20),
            st.binary(min_size=16, max_size=16),
            st.lists(fetched_partitions, max_size=3),
        ),
        max_size=3,
    ),
    endpoints=endpoint_lists,
    isolation=st.sampled_from([0, 1]),
)
@settings(max_examples=15, deadline=None)
def test_fetch_response_is_read_by_kio(
    version: int, topics: list[TopicFetched], endpoints: list[NodeEndpoint], isolation: int
) -> None:
    buffers = encode_fetch(header(FETCH, version), 0, topics, endpoints, isolation=isolation)
    read = kio_reads("Fetch", version, b"".join(buffers))
    for ours, theirs in zip(topics, read.responses, strict=True):
        if version >= 13:
            assert (theirs.topic_id.bytes if theirs.topic_id else bytes(16)) == ours.topic_id
        else:
            assert theirs.topic == ours.name
        for mine, partition in zip(ours.partitions, theirs.partitions, strict=True):
            assert (mine.partition, mine.error_code, mine.high_watermark, mine.stable_end) == (
                partition.partition_index, int(partition.error_code), partition.high_watermark,
                partition.last_stable_offset,
            )  # fmt: skip
            assert b"".join(mine.batches) == (partition.records or b"")
            told = partition.aborted_transactions
            assert (told is None) == (not isolation)
            assert [(one.producer_id, one.first_offset) for one in told or ()] == [
                one[:2] for one in mine.aborted if isolation
            ]
            if version >= 12 and mine.leader is not None:
                hint = partition.current_leader
                assert (hint.leader_id, hint.leader_epoch) == mine.leader
    if version >= 16:
        assert [tuple(e) for e in endpoints] == [
            (n.node_id, n.host, n.port, n.rack or "") for n in read.node_endpoints
        ]


def test_fetched_bytes_are_not_copied() -> None:
    batch = memoryview(bytes(100_000))
    topics = [TopicFetched("t", bytes(16), [PartitionFetched(0, 0, 5, 0, [batch], len(batch))])]
    buffers = encode_fetch(header(FETCH, 12), 0, topics, [])
    assert any(buffer is batch for buffer in buffers)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response_is_read_by_kafka_python(version: int) -> None:
    topics = [
        TopicFetched("flights", bytes(range(16)), [PartitionFetched(1, 0, 9, 2, [b"abc", b"de"], 5, (1, 4))])
    ]
    frame = b"".join(encode_fetch(header(FETCH, version), 0, topics, [NodeEndpoint(1, "h", 2)]))
    body = frame[9 if APIS[FETCH].is_flexible(version) else 8 :]
    read = kafka_python_class("FetchResponse").decode(body, version=version)
    partition = read.responses[0].partitions[0]
    assert bytes(partition.records) == b"abcde"
    assert (partition.partition_index, partition.high_watermark) == (1, 9)


SHARE_FETCH_VERSIONS = range(APIS[SHARE_FETCH].min_version, APIS[SHARE_FETCH].max_version + 1)


@pytest.mark.parametrize("version", SHARE_FETCH_VERSIONS)
def test_share_fetch_request_of_kio(version: int) -> None:
    for seed in range(8):
        theirs = random_kio(kio_class("ShareFetch", version, "request"), random.Random(seed))
        ours = decode_share_fetch(Reader(memoryview(kio_bytes(theirs))), version)
        assert version < 2 or list(leaves(ours)) == list(leaves(theirs)), (
            "before, fields are at their defaults"
        )
        assert ours.share_session_epoch == theirs.share_session_epoch
        assert (ours.max_bytes, ours.max_records, ours.batch_size) == (
            theirs.max_bytes, theirs.max_records, theirs.batch_size,
        )  # fmt: skip


shared = st.builds(
    ShareFetched,
    topic_id=st.sampled_from([b"1" * 16, b"2" * 16]),
    partition=st.integers(0, 2**31 - 1),
    error_code=st.sampled_from([0, 6, 100]),
    error_message=st.none() | st.text(max_size=20),
    ack_error_code=st.sampled_from([0, 121]),
    ack_error_message=st.none() | st.text(max_size=20),
    leader=st.tuples(st.integers(-1, 9), st.integers(-1, 2**31 - 1)),
    batches=st.just(()),
    acquired=st.lists(
        st.builds(Acquired, st.integers(0, 2**40), st.integers(2**40 + 1, 2**41), st.integers(1, 10)),
        max_size=3,
    ),
)


@pytest.mark.parametrize("version", SHARE_FETCH_VERSIONS)
@given(
    found=st.lists(shared, max_size=4),
    records=st.binary(max_size=300),
    endpoints=endpoint_lists,
    error=st.sampled_from([0, 122, 123]),
)
@settings(max_examples=40, deadline=None)
def test_share_fetch_response_is_read_by_kio(
    version: int, found: list[ShareFetched], records: bytes, endpoints: list[NodeEndpoint], error: int
) -> None:
    if found and records:
        found[-1].batches, found[-1].size_bytes = [memoryview(records)], len(records)
    buffers = encode_share_fetch(header(SHARE_FETCH, version), error, "why", found, endpoints, lock_ms=7)
    read = kio_reads("ShareFetch", version, b"".join(buffers))
    assert (int(read.error_code), read.error_message) == (error, "why")
    assert next(leaves(read.acquisition_lock_timeout)) == 7
    told = {
        (topic.topic_id.bytes, number): partition
        for topic in read.responses
        for number, partition in enumerate(topic.partitions)
    }
    assert len(told) == len(found)
    counts: dict[bytes, int] = {}
    for ours in found:
        number = counts.get(ours.topic_id, 0)
        counts[ours.topic_id] = number + 1
        theirs = told[ours.topic_id, number]
        assert (theirs.partition_index, int(theirs.error_code)) == (ours.partition, ours.error_code)
        assert theirs.acknowledge_error_code == ours.ack_error_code
        assert theirs.acknowledge_error_message == ours.ack_error_message
        assert (theirs.current_leader.leader_id, theirs.current_leader.leader_epoch) == ours.leader
        assert bytes(theirs.records or b"") == b"".join(ours.batches)
        assert [(a.first_offset, a.last_offset, a.delivery_count) for a in theirs.acquired_records] == [
            (a.first, a.end - 1, a.deliveries) for a in ours.acquired
        ]
    assert [tuple(e) for e in endpoints] == [
        (n.node_id, n.host, n.port, n.rack or "") for n in read.node_endpoints
    ]


READERS = (
    [(SHARE_FETCH, v, decode_share_fetch) for v in SHARE_FETCH_VERSIONS]
    + [(PRODUCE, v, decode_produce) for v in PRODUCE_VERSIONS]
    + [(FETCH, v, decode_fetch) for v in FETCH_VERSIONS]
)


@pytest.mark.parametrize(("key", "version", "read"), READERS)
def test_cut_and_damaged_requests_are_violations_and_nothing_else(key: int, version: int, read: Any) -> None:
    name = APIS[key].name
    rng = random.Random(version)
    data = kio_bytes(random_kio(kio_class(name, version, "request"), rng))
    for _ in range(150):
        cut = rng.randrange(len(data))
        with pytest.raises(ProtocolViolationError):
            read(Reader(memoryview(data[:cut])), version)
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = read(Reader(memoryview(damaged)), version)
        except ProtocolViolationError:
            continue
        assert isinstance(found, ProduceRequest | FetchRequest | ShareFetchRequest)
