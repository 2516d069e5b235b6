"""The errors that a listener answers with because a test says so stand where a broker puts them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

import antiphon.kafka
from antiphon.errors import InvalidRequestError
from antiphon.kafka.apis import APIS, ServedApi
from antiphon.kafka.error_names import CODES, code_named
from antiphon.kafka.faulty_answers import can_fail, failed, failed_fetch, failed_produce, failed_share_fetch
from antiphon.kafka.fetch_codec import FetchRequest, PartitionWanted, TopicWanted
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.listener_faults import FAILING, FaultCount
from antiphon.kafka.messages.groups import DeleteGroupsRequest
from antiphon.kafka.messages.share_groups import ShareFetchRequest, SharePartitionWanted, ShareTopicWanted
from antiphon.kafka.produce_codec import PartitionBatch, ProduceRequest
from antiphon.kafka.schema import Message, decode, encode
from tests.kafka.oracles import kio_class

ERROR = 41  # NOT_CONTROLLER, which nothing here answers by itself
BY_NAME = {api.name: api for api in APIS.values()}


def sample(annotation: Any) -> Any:
    """A value of an annotation of a message: lists have one element."""
    if get_origin(annotation) is Annotated:
        kind = get_args(annotation)[1]
        return bytes(16) if kind == "uuid" else sample(get_args(annotation)[0])
    options = [one for one in get_args(annotation) if one is not type(None)]
    if get_origin(annotation) is list:
        return [sample(options[0])]
    if options:
        return sample(options[0])
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return annotation(**{one.name: sample(one.type) for one in msgspec.structs.fields(annotation)})
    return {int: 1, str: "name", bytes: b"", bool: False, float: 1.0}[annotation]


def errors(found: Any) -> Iterator[int]:
    """Every error code in a message."""
    if isinstance(found, Message):
        for name in found.__struct_fields__:
            value = getattr(found, name)
            if name == "error_code":
                yield value
            else:
                yield from errors(value)
    elif isinstance(found, list):
        for one in found:
            yield from errors(one)


def answered(api: ServedApi, version: int, request: Message) -> Any:
    """The answer as a client reads it."""
    flexible = api.is_flexible(version)
    assert api.request is not None
    assert api.response is not None
    asked = decode(
        api.request, memoryview(encode(request, version, flexible=flexible)), version, flexible=flexible
    )
    response = failed(api, asked, version, ERROR)
    if response is None:
        return None
    body = encode(response, version, flexible=flexible)
    return decode(api.response, memoryview(body), version, flexible=flexible)


@pytest.mark.parametrize(
    "name", [name for name, api in BY_NAME.items() if can_fail(api) and name != "Metadata"]
)
def test_each_answer_has_the_error_in_every_version(name: str) -> None:
    api = BY_NAME[name]
    for version in range(api.min_version, api.max_version + 1):
        found = set(errors(answered(api, version, sample(api.request))))
        at_top_too = name in (
            "OffsetFetch",
            "FindCoordinator",
            "ElectLeaders",
            "AddPartitionsToTxn",
            "ShareAcknowledge",
        )  # in some versions
        no_place = name == "DescribeLogDirs" and version < 3
        assert found == set() if no_place else ERROR in found, version
        assert found <= {ERROR, 0} if at_top_too else found <= {ERROR}, version


def test_where_a_few_of_them_stand() -> None:
    commit = answered(BY_NAME["OffsetCommit"], 8, sample(BY_NAME["OffsetCommit"].request))
    assert commit.topics[0].name == "name"
    assert commit.topics[0].partitions[0].error_code == ERROR
    old, new = (
        answered(BY_NAME["OffsetFetch"], version, sample(BY_NAME["OffsetFetch"].request))
        for version in (7, 8)
    )
    assert (old.error_code, old.topics) == (ERROR, [])
    assert [(group.group_id, group.error_code) for group in new.groups] == [("name", ERROR)]
    found = answered(BY_NAME["FindCoordinator"], 4, sample(BY_NAME["FindCoordinator"].request))
    assert [(one.key, one.error_code) for one in found.coordinators] == [("name", ERROR)]
    joined = answered(BY_NAME["JoinGroup"], 9, sample(BY_NAME["JoinGroup"].request))
    assert (joined.error_code, joined.protocol_name, joined.member_id) == (ERROR, None, "name")


def test_what_asks_for_nothing_has_no_place_for_an_error() -> None:
    assert answered(BY_NAME["DeleteGroups"], 2, DeleteGroupsRequest(groups_names=[])) is None
    for version in (3, 11):
        header = RequestHeader(BY_NAME["Produce"], version, 7, "", supported=True)
        assert failed_produce(header, ProduceRequest(None, -1, 0, [("topic", [])]), ERROR) is None
    header = RequestHeader(BY_NAME["Fetch"], 16, 7, "", supported=True)
    assert failed_fetch(header, FetchRequest(0, 0, 0, 0, 0, -1, []), ERROR) is None


@pytest.mark.parametrize("version", range(3, 12))
def test_a_failed_produce_as_another_codec_reads_it(version: int) -> None:
    api = BY_NAME["Produce"]
    header = RequestHeader(api, version, 7, "", supported=True)
    request = ProduceRequest(None, -1, 0, [("topic", [PartitionBatch(4, None)])])
    frame = failed_produce(header, request, ERROR)
    assert frame is not None
    answer, _ = entity_reader(kio_class("Produce", version, "response"))(
        bytes(frame)[_start(api, version) :], 0
    )
    assert [topic.name for topic in answer.responses] == ["topic"]
    (partition,) = answer.responses[0].partition_responses
    assert (partition.index, partition.error_code, partition.base_offset) == (4, ERROR, -1)


@pytest.mark.parametrize("version", range(4, 17))
@pytest.mark.parametrize("error", [ERROR, 70])
def test_a_failed_fetch_as_another_codec_reads_it(version: int, error: int) -> None:
    api = BY_NAME["Fetch"]
    header = RequestHeader(api, version, 7, "", supported=True)
    wanted = TopicWanted("topic", bytes(15) + b"1", [PartitionWanted(4, -1, 0, 1)])
    buffers = failed_fetch(header, FetchRequest(0, 0, 0, 0, 0, -1, [wanted]), error)
    assert buffers is not None
    body = b"".join(buffers)[_start(api, version) :]
    answer, _ = entity_reader(kio_class("Fetch", version, "response"))(body, 0)
    if error == 70 and version >= 7:
        assert (answer.error_code, answer.responses) == (70, ())
        return
    (partition,) = answer.responses[0].partitions
    assert (partition.partition_index, partition.error_code) == (4, error)
    assert not partition.records


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("error", [ERROR, 122])
def test_a_failed_share_fetch_as_another_codec_reads_it(version: int, error: int) -> None:
    api = BY_NAME["ShareFetch"]
    header = RequestHeader(api, version, 7, "", supported=True)
    wanted = SharePartitionWanted(partition_index=4, acknowledgement_batches=[])
    request = ShareFetchRequest(
        group_id="g",
        member_id="m",
        share_session_epoch=1,
        max_wait_ms=0,
        min_bytes=0,
        max_records=1,
        batch_size=1,
        topics=[ShareTopicWanted(topic_id=bytes(15) + b"1", partitions=[wanted])],
        forgotten_topics_data=[],
    )
    buffers = failed_share_fetch(header, request, error)
    assert buffers is not None
    body = b"".join(buffers)[_start(api, version) :]
    answer, _ = entity_reader(kio_class("ShareFetch", version, "response"))(body, 0)
    if error == 122:
        assert (answer.error_code, answer.responses) == (122, ())
        return
    (partition,) = answer.responses[0].partitions
    assert (partition.partition_index, partition.error_code) == (4, error)
    request.topics = []
    assert failed_share_fetch(header, request, error) is None


def _start(api: ServedApi, version: int) -> int:
    return 9 if api.is_flexible(version) else 8


def test_every_api_but_logins_can_fail() -> None:
    assert BY_NAME.keys() - FAILING == {"SaslHandshake", "SaslAuthenticate"}


def test_codes_have_kafkas_names() -> None:
    assert {code.name.upper(): code.value for code in ErrorCode if code.value} == CODES


@pytest.mark.parametrize("code", [0, True, "NOT_LEADER", "6", -2, 1 << 15, None])
def test_what_is_no_code_is_refused(code: Any) -> None:
    with pytest.raises(InvalidRequestError, match="is no error code of Kafka's"):
        code_named(code)
    assert code_named("NOT_LEADER_OR_FOLLOWER") == code_named(6) == 6


def test_a_node_that_nobody_may_hurt_does_not_even_import_it() -> None:
    """Only inside a function, which a node that is to be hurt calls, may others import these modules."""
    package = Path(antiphon.kafka.__file__).parent.parent
    for path in package.rglob("*.py"):
        assert path.name.startswith("hurt_") or not re.search(
            r"^from antiphon.kafka.hurt_", path.read_text(), re.MULTILINE
        )


def test_hits_are_counted_by_the_system(tmp_path: Path) -> None:
    path = tmp_path / "tally"
    path.touch()
    several = [FaultCount(path, 5) for _ in range(3)]  # as many nodes, or one that was started again
    assert sum(one.take() for _ in range(4) for one in several) == 5
