"""Options of a read with `format("antiphon")`: parsed once, checked whole. Those of a write are in `write.options`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.records.unreadable import DEAD_LETTER, FAIL, SKIP, Choice, checked, chosen
from antiphon.spark.offset_options import EARLIEST, LATEST, OffsetSpec, parse_as_of, parse_range_end
from antiphon.spark.option_values import COMMON, READ, WRITE, Options, Target, refuse
from antiphon.spark.read.keys import KeyRange, parse_keys

ISOLATIONS: Final = {
    "committed": "committed",
    "uncommitted": "uncommitted",
    "read_committed": "committed",
    "read_uncommitted": "read_uncommitted",
}
FORMATS: Final = ("raw", "cdf", "debezium")
KEY_FORMATS: Final = ("binary", "string")
ENCODINGS: Final = ("text", "base64", "json")
FETCH_BYTES_DEFAULT: Final = 4 * 1024 * 1024
PARTITIONS_MAX: Final = 100_000
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000  # as in Spark's Kafka source

_RANGE: Final = (
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
)  # fmt: skip
_KEYS: Final = ("key", "keyPrefix", "keyEncoding")
_OF_STREAMS: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OF_BATCHES: Final = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "asOfOffset",
    "asOfTimestamp",
)


@dataclass(frozen=True)
class Admission:
    """How much of what waits a micro-batch takes; None: no such bound."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_ms: int = MAX_TRIGGER_DELAY_MS  # for so long less than `offsets_min` waits


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read. `streaming` decides the defaults that differ."""

    target: Target
    mode: str  # "log" for topics; "changes" or "snapshot" for a table
    format: str  # of changes: raw, cdf or debezium
    encoding: str  # of keys and values in Debezium's JSON
    tombstones: bool
    columns: tuple[str, ...] | None
    include_headers: bool
    starting: OffsetSpec
    ending: OffsetSpec
    as_of: OffsetSpec | None
    keys: KeyRange | None
    admission: Admission
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    isolation: str
    read_from: str
    retries: int | None
    fetch_bytes: int
    on_corrupt: Choice


@dataclass(frozen=True)
class Shape:
    """What decides about the columns."""

    is_table: bool
    include_headers: bool = False
    format: str = "raw"
    columns: tuple[str, ...] | None = None
    key_format: str = "binary"


def parse_shape(raw: Mapping[str, str]) -> Shape:
    """The options that decide about columns; the others are checked when it is known what they are for."""
    options = Options(raw, COMMON + READ + WRITE, (), "a read")
    return Shape(
        options.target(several=True).is_table,
        options.flag("includeHeaders", default=False),
        options.choice("format", "raw", FORMATS),
        options.names("columns"),
        options.choice("keyFormat", "binary", KEY_FORMATS),
    )


def parse_read(raw: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Options of `spark.read` or `spark.readStream`; raises InvalidRequestError."""
    options = Options(raw, COMMON + READ, WRITE, "a read")
    target = options.target(several=True)
    format_ = options.choice("format", "raw", FORMATS)
    mode = _mode(options, target, format_, streaming=streaming)
    _check(options, target, mode, format_, streaming=streaming)
    isolation = options.choice("isolation", "committed", ISOLATIONS)
    if isolation == "uncommitted" and (streaming or target.is_table):
        raise InvalidRequestError(
            "isolation=uncommitted is for batch reads of topics: rows that may vanish cannot be processed exactly once"
        )
    read_from = options.choice("readFrom", "leader", ("leader", "follower"))
    if read_from == "follower" and isolation == "uncommitted":
        raise InvalidRequestError(
            "isolation=uncommitted is known to the leader only: leave readFrom=follower out"
        )
    return ReadOptions(
        target=target,
        mode=mode,
        format=format_,
        encoding=options.choice("encoding", "text", ENCODINGS),
        tombstones=options.flag("tombstones", default=False),
        columns=options.names("columns"),
        include_headers=options.flag("includeHeaders", default=False),
        starting=parse_range_end(options, "starting", target, LATEST if streaming else EARLIEST),
        ending=parse_range_end(options, "ending", target, LATEST),
        as_of=parse_as_of(options, target),
        keys=parse_keys(options),
        admission=_admission(options),
        min_partitions=options.number("minPartitions", None, high=PARTITIONS_MAX),
        max_partitions=_max_partitions(options),
        max_records_per_partition=options.number("maxRecordsPerPartition", None),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        isolation=isolation,
        read_from=read_from,
        retries=options.number("retries", None, low=0),
        fetch_bytes=options.number("fetchBytes", FETCH_BYTES_DEFAULT, low=1024, high=32 * 1024 * 1024) or 0,
        on_corrupt=_on_corrupt(options, target),
    )


def _max_partitions(options: Options) -> int | None:
    most = options.number("maxPartitions", None, high=PARTITIONS_MAX)
    least = options.number("minPartitions", None, high=PARTITIONS_MAX)
    if most is not None and least is not None and least > most:
        raise InvalidRequestError(f"minPartitions={least} is above maxPartitions={most}")
    if most is not None and options.text("maxRecordsPerPartition") is not None:
        raise InvalidRequestError("give maxPartitions or maxRecordsPerPartition, not both")
    return most


def _on_corrupt(options: Options, target: Target) -> Choice:
    """What becomes of batches that cannot be read."""
    if target.is_table:
        refuse(options, "a table, whose batches are the nodes' own", ("onCorrupt", "deadLetters"))
    word = options.choice("onCorrupt", FAIL, (FAIL, SKIP, DEAD_LETTER))
    return checked(chosen(word, options.text("deadLetters")), *target.names)


def _mode(options: Options, target: Target, format_: str, *, streaming: bool) -> str:
    if not target.is_table:
        if options.text("mode") is not None:
            raise InvalidRequestError("option mode is for tables; a topic has one mode of reading")
        return "log"
    default = "changes" if streaming or format_ != "raw" else "snapshot"
    mode = options.choice("mode", default, ("changes", "snapshot"))
    if streaming and mode == "snapshot":
        raise InvalidRequestError(
            "a snapshot cannot be streamed; mode=changes from startingOffsets=earliest gives all changes"
        )
    return mode


def _check(options: Options, target: Target, mode: str, format_: str, *, streaming: bool) -> None:
    """Refuse options that mean nothing in this combination: they would be passed over in silence otherwise."""
    options.choice("keyFormat", "binary", KEY_FORMATS)  # what it means is in the columns
    if streaming:
        refuse(options, "a stream", _OF_BATCHES)
    else:
        refuse(options, "a batch read", _OF_STREAMS)
    if mode == "snapshot":
        use = "a snapshot of a table; for its changes set mode=changes"
        refuse(options, use, (*_RANGE, "isolation", "minPartitions", "maxRecordsPerPartition", "readFrom"))
        if format_ != "raw":
            raise InvalidRequestError(f"format={format_} is a form of changes: leave mode=snapshot out")
    else:
        refuse(options, "anything but a snapshot of a table", ("asOfOffset", "asOfTimestamp"))
        refuse(options, "anything but a snapshot of a table; filter rows by their key", _KEYS)
    if target.is_table:
        refuse(options, "a table, whose columns are fixed", ("includeHeaders",))
    else:
        refuse(options, "a topic, only to the changes of a table", ("format",))
    if format_ != "debezium":
        refuse(options, "anything but format=debezium", ("encoding", "tombstones"))


def _admission(options: Options) -> Admission:
    found = Admission(
        options.number("maxOffsetsPerTrigger", None),
        options.number("maxBytesPerTrigger", None),
        options.number("minOffsetsPerTrigger", None),
        options.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
    )
    if found.offsets_min is None and options.text("maxTriggerDelay") is not None:
        raise InvalidRequestError(
            "option maxTriggerDelay bounds the wait for minOffsetsPerTrigger; give that too"
        )
    if (
        found.offsets_min is not None
        and found.offsets_max is not None
        and found.offsets_min > found.offsets_max
    ):
        raise InvalidRequestError(
            f"minOffsetsPerTrigger={found.offsets_min} is above maxOffsetsPerTrigger={found.offsets_max}"
        )
    return found
