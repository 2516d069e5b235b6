"""Two independent codecs of Kafka's protocol to compare ours with: kio and kafka-python.

`random_kio` builds a message of kio's from its own schema, `kio_bytes` encodes it, `leaves` flattens any message to
its scalar values in wire order, so that two codecs can be compared value by value without agreeing on names.
"""

import dataclasses
import datetime
import enum
import importlib
import io
import random
import re
import types
import typing
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec


def kafka_python() -> Any:
    """The `kafka` package; it reads its schemas by a deprecated call while it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka.protocol.admin
        import kafka.protocol.consumer
        import kafka.protocol.metadata
        import kafka.protocol.producer

        import kafka
    return kafka


def kafka_python_class(name: str) -> Any:
    """kafka-python's class of a message, or None where it has none."""
    protocol = kafka_python().protocol
    for module in (protocol.admin, protocol.consumer, protocol.metadata, protocol.producer):
        if hasattr(module, name):
            return getattr(module, name)
    return None


def kio_class(api_name: str, version: int, direction: str) -> Any:
    """The kio class of an API's request or response."""
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", api_name).lower()
    module = importlib.import_module(f"kio.schema.{folder}.v{version}.{direction}")
    return getattr(module, f"{api_name}{direction.capitalize()}")


def kio_bytes(message: Any) -> bytes:
    """Encode with kio."""
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def random_kio(cls: Any, rng: random.Random) -> Any:
    """A random message of kio's."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if "tag" in field.metadata and rng.random() < 0.5:
            continue
        values[field.name] = _random_value(hints[field.name], field.metadata.get("kafka_type"), rng)
    return cls(**values)


def _random_value(hint: Any, kafka_type: str | None, rng: random.Random) -> Any:
    origin = typing.get_origin(hint)
    if origin in {typing.Union, types.UnionType}:
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return None if rng.random() < 0.3 else _random_value(options[0], kafka_type, rng)
    if origin is tuple:
        element = typing.get_args(hint)[0]
        return tuple(_random_value(element, kafka_type, rng) for _ in range(rng.randrange(4)))
    if dataclasses.is_dataclass(hint):
        return random_kio(hint, rng)
    return _random_scalar(hint, kafka_type or "", rng)


def _random_scalar(hint: Any, kafka_type: str, rng: random.Random) -> Any:
    from kio.schema.errors import ErrorCode

    bits = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}.get(kafka_type)
    if bits is not None:
        return hint(rng.choice((-1, 0, 1, rng.randrange(1 << bits), -(1 << bits), (1 << bits) - 1)))
    match kafka_type:
        case "uint16":
            return hint(rng.choice((0, 1, rng.randrange(1 << 16), (1 << 16) - 1)))
        case "string":
            return hint("".join(rng.choice("aé漢-_.0") for _ in range(rng.choice((0, 1, 5, 130)))))
        case "bytes" | "records":
            return hint(rng.randbytes(rng.choice((0, 1, 130, 20_000))))
        case "uuid":
            return uuid.UUID(int=rng.randrange(1, 1 << 128))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return hint(rng.choice((0.0, -1.5, rng.random() * 1e12)))
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return hint.parse(datetime.timedelta(milliseconds=rng.randrange(1 << 31)))
        case "datetime_i64":
            return hint.parse(datetime.datetime.fromtimestamp(rng.randrange(1 << 31), datetime.UTC))
        case _:
            raise AssertionError(f"a type that this generator does not know: {kafka_type} {hint}")


def leaves(value: Any) -> Iterator[Any]:
    """Scalar values in wire order; an array is opened by its length, an all-zero uuid is None."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from leaves(getattr(value, name))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        yield ("array", len(value))
        for element in value:
            yield from leaves(element)
    elif isinstance(value, datetime.timedelta):
        yield round(value / datetime.timedelta(milliseconds=1))
    elif isinstance(value, datetime.datetime):
        yield round(value.timestamp() * 1000)
    elif isinstance(value, enum.IntEnum):
        yield int(value)
    elif isinstance(value, uuid.UUID):
        yield value.bytes
    elif value == bytes(16):
        yield None
    else:
        yield value
