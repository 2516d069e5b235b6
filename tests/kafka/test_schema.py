"""Every message in every version that is offered, against kio and kafka-python."""

import random
from typing import Annotated, Any

import msgspec
import pytest

from antiphon.errors import InternalError, ProtocolViolationError
from antiphon.kafka.api import Api
from antiphon.kafka.apis import APIS
from antiphon.kafka.messages.cluster import ApiVersionsResponse, MetadataRequest, MetadataResponse
from antiphon.kafka.messages.groups import HeartbeatRequest
from antiphon.kafka.schema import I32, Message, V, codec, decode, encode
from tests.kafka.oracles import kafka_python_class, kio_bytes, kio_class, leaves, random_kio

CASES = [
    pytest.param(api, direction, id=f"{api.name}-{direction}")
    for api in APIS.values()
    if api.request is not None
    for direction in ("request", "response")
]
"""A test of each message in all its versions: one for each version would cost more for the tests than for what they do."""


def versions(api: Api) -> range:
    return range(api.min_version, api.max_version + 1)


def message_class(api: Api, direction: str) -> type[Message]:
    cls = api.request if direction == "request" else api.response
    assert cls is not None
    return cls


def on_the_wire(message: Message, version: int) -> list[Any]:
    """Our message's leaves without the fields that this version does not carry."""
    plain: list[Any] = []
    tagged: list[Any] = []
    for field in msgspec.structs.fields(message):
        when = next((m for m in getattr(field.type, "__metadata__", ()) if hasattr(m, "since")), None)
        if when is not None and not when.since <= version <= when.until:
            continue
        value = getattr(message, field.name)
        target = tagged if when is not None and when.tag is not None else plain
        if isinstance(value, list) and value and isinstance(value[0], Message):
            target.append(("array", len(value)))
            for element in value:
                target.extend(on_the_wire(element, version))
        else:
            target.extend(leaves(value))
    return plain + tagged


# kio has fields that we never write, as tagged fields of a response; they must be skipped, so they are not compared.
UNKNOWN_TAGS = {("ApiVersions", "response")}
# In these, kio declares tagged fields between the plain ones.
TAGS_INSIDE = {("CreateTopics", "response")}


@pytest.mark.parametrize(("api", "direction"), CASES)
def test_kio_and_we_read_and_write_the_same(api: Api, direction: str) -> None:
    for version in versions(api):
        compare_with_kio(api, version, direction)


def compare_with_kio(api: Api, version: int, direction: str) -> None:
    cls = message_class(api, direction)
    flexible = api.is_flexible(version)
    theirs_class = kio_class(api.name, version, direction)
    assert theirs_class.__flexible__ == flexible
    for seed in range(6):
        theirs = random_kio(theirs_class, random.Random(seed))
        data = kio_bytes(theirs)
        ours = decode(cls, memoryview(data), version, flexible=flexible)
        if (api.name, direction) not in UNKNOWN_TAGS:
            expected = list(leaves(theirs))
            found = on_the_wire(ours, version)
            if (api.name, direction) in TAGS_INSIDE:
                expected, found = sorted(expected, key=repr), sorted(found, key=repr)
            assert found == expected
            assert encode(ours, version, flexible=flexible) == data


@pytest.mark.parametrize(("api", "direction"), CASES)
def test_kafka_python_reads_and_writes_the_same(api: Api, direction: str) -> None:
    theirs_class = kafka_python_class(f"{api.name}{direction.capitalize()}")
    if theirs_class is None:
        pytest.skip("kafka-python does not have this message")
    for version in versions(api):
        compare_with_kafka_python(api, version, direction, theirs_class)


def compare_with_kafka_python(api: Api, version: int, direction: str, theirs_class: Any) -> None:
    cls = message_class(api, direction)
    flexible = api.is_flexible(version)
    for seed in range(3):
        data = kio_bytes(random_kio(kio_class(api.name, version, direction), random.Random(seed)))
        ours = decode(cls, memoryview(data), version, flexible=flexible)
        if isinstance(ours, ApiVersionsResponse):
            ours.error_code = 0  # with an error, kafka-python reads version 0 whatever was asked
        encoded = bytes(encode(ours, version, flexible=flexible))
        theirs = theirs_class.decode(encoded, version=version)
        again = theirs_class(version=version, **{k: getattr(theirs, k) for k in theirs_class.fields})
        assert bytes(again.encode(version=None)) == encoded


@pytest.mark.parametrize(("api", "direction"), CASES)
def test_a_cut_or_damaged_message_is_a_violation_and_nothing_else(api: Api, direction: str) -> None:
    for version in versions(api):
        cut_and_damage(api, version, direction)


def cut_and_damage(api: Api, version: int, direction: str) -> None:
    cls = message_class(api, direction)
    flexible = api.is_flexible(version)
    rng = random.Random(f"{api.name}{version}{direction}")
    data = kio_bytes(random_kio(kio_class(api.name, version, direction), rng))
    cuts = range(len(data)) if len(data) < 200 else [rng.randrange(len(data)) for _ in range(200)]
    for cut in cuts:
        with pytest.raises(ProtocolViolationError):
            decode(cls, memoryview(data[:cut]), version, flexible=flexible)
    for _ in range(200 if data else 0):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode(cls, memoryview(damaged), version, flexible=flexible)
        except ProtocolViolationError:
            continue


def test_an_array_cannot_claim_more_elements_than_there_are_bytes() -> None:
    with pytest.raises(ProtocolViolationError, match="array of 2147483647"):
        decode(MetadataRequest, memoryview(b"\x7f\xff\xff\xff\x00"), 1, flexible=False)


def test_bytes_after_the_message_are_a_violation() -> None:
    with pytest.raises(ProtocolViolationError, match="3 bytes follow"):
        decode(MetadataRequest, memoryview(b"\xff\xff\xff\xffabc"), 1, flexible=False)


def test_null_is_refused_where_the_version_does_not_allow_it() -> None:
    with pytest.raises(ProtocolViolationError, match="topics must not be null"):
        decode(MetadataRequest, memoryview(b"\xff\xff\xff\xff"), 0, flexible=False)
    assert decode(MetadataRequest, memoryview(b"\xff\xff\xff\xff"), 1, flexible=False).topics is None


def test_none_is_never_written_where_the_version_does_not_allow_it() -> None:
    request = HeartbeatRequest(group_id=None, generation_id=1, member_id="m")  # type: ignore[arg-type]
    with pytest.raises(InternalError):
        encode(request, 0, flexible=False)


def test_a_field_without_default_must_be_in_every_version() -> None:
    class Wrong(Message, kw_only=True):
        """A message whose only field is missing from version 0."""

        field: Annotated[I32, V(1)]

    assert decode(Wrong, memoryview(bytes(4)), 1, flexible=False).field == 0
    with pytest.raises(InternalError, match="has no default"):
        codec(Wrong, 0, False)


def test_messages_are_plain_structs() -> None:
    response = MetadataResponse(brokers=[], topics=[])
    assert isinstance(response, msgspec.Struct)
    assert response.throttle_time_ms == 0
