"""Records as lines of stdout: values, keys, JSON."""

import base64
import json
import sys
from typing import Any, Final

from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.records.decode import Record

_JSON_STARTS: Final = (b"{", b"[")


class RecordLines:
    """Writes records. `pretty`: values that are JSON documents over several lines; `shards`: the shard before each line."""

    def __init__(self, topic: str, *, keys: bool, as_json: bool, pretty: bool, shards: bool) -> None:
        self._topic = topic
        self._keys = keys
        self._as_json = as_json
        self._pretty = pretty
        self._shards = shards

    def write(self, shard: int, record: Record) -> None:
        """Write one record, and hand it on at once."""
        if self._as_json:
            sys.stdout.write(json.dumps(self._document(shard, record), ensure_ascii=False) + "\n")
        else:
            value = record.value or b""
            line = (indented(value) if self._pretty else value) + b"\n"
            if self._keys:
                line = (record.key or b"") + b"\t" + line
            if self._shards:
                line = b"%d\t" % shard + line
            sys.stdout.buffer.write(line)
        sys.stdout.flush()

    def _document(self, shard: int, record: Record) -> dict[str, Any]:
        document: dict[str, Any] = {
            "topic": self._topic,
            "shard": shard,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": as_text(record.key),
            "value": as_text(record.value),
        }
        if record.headers:
            document["headers"] = {name: as_text(value) for name, value in record.headers}
        if (version := version_in(record)) is not None:
            document["version"] = version
        return document


def version_in(record: Record) -> dict[str, int] | None:
    """The version in a record of a table's log; None in one of a topic."""
    name, packed = record.headers[0] if record.headers else ("", None)
    if name != VERSION_HEADER or packed is None or len(packed) != VERSION.size:
        return None
    return dict(
        zip(("id", "modifications", "created_ms", "modified_ms"), VERSION.unpack(packed), strict=True)
    )


def indented(value: bytes) -> bytes:
    """A JSON document with a line for each of its parts; anything else as it is."""
    if not value.lstrip().startswith(_JSON_STARTS):
        return value
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return value


def as_text(value: bytes | None) -> str | dict[str, str] | None:
    """Text where it is UTF-8, else {"base64": ...}, so that no byte is lost."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
