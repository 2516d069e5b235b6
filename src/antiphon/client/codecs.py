"""Codecs: what values are to a program, and the bytes that they are in a topic or a table."""

import sys
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from antiphon.errors import InvalidRequestError

T = TypeVar("T")


class Codec(Protocol[T]):
    """Makes bytes of values, and values of bytes. Both raise whatever they like; the client says whose value it was."""

    def encode(self, value: T, /) -> bytes:
        """The bytes of a value."""

    def decode(self, data: bytes, /) -> T:
        """The value of bytes that `encode` made."""


class _Checked(Generic[T]):
    """A codec that refuses to write what is no value of its type, where the type is a class."""

    def __init__(self, kind: "type[T]", encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self.type = kind
        given: Any = kind  # the parameters of `list[int]` and the keys of a TypedDict are not looked at
        checks = isinstance(given, type) and not hasattr(given, "__required_keys__")
        self._class: type = given if checks else object
        self._encode = encode
        self.decode = decode

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of(self.type)})"

    def encode(self, value: T, /) -> bytes:
        """The bytes of a value. Raises TypeError for a value of another type."""
        if not isinstance(value, self._class):
            raise TypeError(f"it is {type(value).__name__}")
        return self._encode(value)


class JsonCodec(_Checked[T]):
    """Values as JSON: msgspec's Structs, dataclasses, TypedDicts, named tuples, and what JSON knows: `JsonCodec(dict)`.

    Models of pydantic are written and read by pydantic itself. What is read is checked against the type.
    """

    def __init__(self, kind: "type[T]") -> None:
        """Raises InvalidRequestError for a type that JSON cannot hold."""
        if _is_pydantic(kind):
            model: Any = kind
            super().__init__(kind, _dumped, model.model_validate_json)
            return
        super().__init__(kind, msgspec.json.Encoder().encode, _decoder(msgspec.json.Decoder, kind))


class MsgpackCodec(_Checked[T]):
    """Values as MessagePack, which is smaller and faster than JSON; the types of `JsonCodec`, without pydantic's."""

    def __init__(self, kind: "type[T]") -> None:
        """Raises InvalidRequestError for a type that MessagePack cannot hold."""
        if _is_pydantic(kind):
            raise InvalidRequestError(
                f"{name_of(kind)} is a model of pydantic, which writes JSON: use JsonCodec"
            )
        super().__init__(kind, msgspec.msgpack.Encoder().encode, _decoder(msgspec.msgpack.Decoder, kind))


class TextCodec(_Checked[str]):
    """Text as UTF-8."""

    def __init__(self) -> None:
        super().__init__(str, str.encode, bytes.decode)


def codec_of(codec: Codec[T] | None, kind: "type[T] | None") -> Codec[T] | None:
    """What `codec=` and `type=` come to: text for str, bytes as they are for bytes (None), JSON for all other types.

    Raises InvalidRequestError when both are given, or the type has no codec.
    """
    if kind is None:
        return codec
    if codec is not None:
        raise InvalidRequestError("give codec= or type=, not both")
    if kind is bytes:
        return None
    text: Any = TextCodec()
    return text if kind is str else JsonCodec(kind)


def name_of(kind: Any) -> str:
    """What a type is called in errors."""
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _is_pydantic(kind: Any) -> bool:
    pydantic: Any = sys.modules.get("pydantic")  # whoever has a model of it has imported it
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _dumped(model: Any) -> bytes:
    text: str = model.model_dump_json()
    return text.encode()


def _decoder(decoder: Any, kind: "type[T]") -> Callable[[bytes], T]:
    try:
        decode: Callable[[bytes], T] = decoder(kind).decode
    except TypeError as error:
        raise InvalidRequestError(
            f"there is no codec for {name_of(kind)} ({error}); give one with codec="
        ) from None
    return decode
