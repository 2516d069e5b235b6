"""Values of a topic or a table as its codec has them; errors say whose value it was."""

from collections.abc import Iterable
from typing import Any, Final, Generic

from antiphon.client.codecs import Codec, name_of
from antiphon.errors import BadRecordError, InvalidRequestError
from antiphon.model.rows import Row
from antiphon.records.decode import Record
from antiphon.records.value_type import ValueT

KEY_SHOWN: Final = 60  # bytes of a key in an error


class Values(Generic[ValueT]):
    """The codec of a topic or table, with what errors say of it."""

    def __init__(self, name: str, codec: Codec[ValueT]) -> None:
        self._name = name
        self._codec = codec
        self.type_name = name_of(getattr(codec, "type", None) or type(codec))

    def encode(self, key: bytes | None, value: Any) -> bytes:
        """The bytes of a value. Raises InvalidRequestError."""
        try:
            return self._codec.encode(value)
        except Exception as error:  # whatever a codec raises
            raise InvalidRequestError(
                f"{self._name}, key {_shown(key)}: the value is no {self.type_name}: {error}",
                name=self._name,
                key=_shown(key),
                type=self.type_name,
            ) from error

    def decode(self, key: bytes | None, data: bytes, **place: int) -> ValueT:
        """The value. Raises BadRecordError; `place` is added to its details: shard and offset, where they are known."""
        try:
            return self._codec.decode(data)
        except Exception as error:  # whatever a codec raises
            where = "".join(f", {name} {number}" for name, number in place.items())
            raise BadRecordError(
                f"{self._name}{where}, key {_shown(key)}: the value is no {self.type_name}: {error}",
                topic=self._name,
                key=_shown(key),
                type=self.type_name,
                reason=str(error),
                **place,
            ) from error

    def row(self, row: Row) -> Row[ValueT]:
        """A row with its value, which is None where it was not asked for. Raises BadRecordError."""
        data: bytes | None = row.value
        value: Any = None if data is None else self.decode(row.key, data)
        return Row(row.key, value, row.version, row.session_id)

    def records(self, records: Iterable[Record]) -> tuple[list[Record[ValueT]], BadRecordError | None]:
        """Records with their values; those before the first that cannot be decoded, and the error."""
        found: list[Record[ValueT]] = []
        for offset, timestamp_ms, key, data, headers, shard in records:
            try:
                value = None if data is None else self.decode(key, data, shard=shard, offset=offset)
            except BadRecordError as error:
                return found, error
            found.append(Record(offset, timestamp_ms, key, value, headers, shard))
        return found, None


def _shown(key: bytes | None) -> str:
    if key is None or len(key) <= KEY_SHOWN:
        return repr(key)
    return f"{key[:KEY_SHOWN]!r}... ({len(key)} bytes)"
