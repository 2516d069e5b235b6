"""The four codecs of RecordBatch v2, with a bound on what a hostile batch may unpack to.

gzip comes with Python. snappy, lz4 and zstd come with pyarrow, which is loaded at the first such batch; without it they
are refused with a message that says what to install. Nodes store what clients sent; they decompress only to look whether
readers can, where a topic's `record.validation` is `full`, and where its `compression.type` names another codec.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from antiphon.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRequestError,
    UnsupportedCompressionError,
)
from antiphon.records.batch import CODEC_NAMES, Buffer

# Of one batch; a topic's `max.decompressed.bytes` may say otherwise
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
GZIP: Final = 1  # the last codec that needs no library
# The level of lz4 that Kafka calls the default: the fast way of packing, below all others
LZ4_FAST: Final = 9
_LZ4_LEVEL_MAX: Final = 12  # of the library; Kafka's go on to 17
_FIRST_READ_BYTES: Final = 64 * 1024
_GZIP_WBITS: Final = 31
_GZIP_MEMBERS_MAX: Final = 1024

# Java's snappy stream: 16 bytes of header, then blocks of (u32 size, raw snappy).
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

# LZ4 frame: independent blocks of at most 64 KiB, no checksums; Java's reader takes no linked blocks.
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_DESCRIPTOR: Final = b"\x60\x40"
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_STORED_BIT: Final = 0x8000_0000

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_BYTES_MIN: Final = 18
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SIZE_BYTES: Final = (0, 2, 4, 8)  # of the content size, by the frame's first two bits
_ZSTD_DICTIONARY_BYTES: Final = (0, 1, 2, 4)


class MissingCodecError(InvalidRequestError):
    """The library that reads a codec is not installed."""


def codec_number(name: str) -> int:
    """Number of a codec by its Kafka name; raises InvalidRequestError."""
    if name not in CODEC_NAMES:
        raise InvalidRequestError(f"unknown compression {name!r}; there is {', '.join(CODEC_NAMES)}")
    return CODEC_NAMES.index(name)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records of one batch as Kafka's clients expect to find them (`codec` 0 gives plain bytes).

    `level`: in the codec's own numbers, as Kafka's `compression.zstd.level` and its like; None: the library's.
    """
    if codec == 0:
        return bytes(data)
    if codec == 1:
        packer = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WBITS)
        return packer.compress(data) + packer.flush()
    if codec == 2:
        return _snappy_compress(data)
    if codec == 3:
        return _lz4_compress(data, None if level in {None, LZ4_FAST} else min(level, _LZ4_LEVEL_MAX))
    if codec == 4:
        return bytes(_arrow_codec("zstd", level).compress(data, asbytes=True))
    raise InvalidRequestError(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Undo `compress`; CorruptBatchError for bytes that are not of that codec, DecompressedTooLargeError for more than
    `limit_bytes`, of which no more than that are ever made.
    """
    if codec == 0:
        return data
    if codec == 1:
        return _gzip_decompress(data, limit_bytes)
    if codec == 2:
        return _snappy_decompress(data, limit_bytes)
    if codec == 3:
        return _stream_decompress("lz4", data, limit_bytes)
    if codec == 4:
        return _stream_decompress("zstd", data, limit_bytes)
    raise UnsupportedCompressionError(f"unknown compression codec {codec}", codec=codec)


def declared_bytes(codec: int, data: Buffer) -> int | None:
    """How many bytes compressed data says that it unpacks to, without unpacking; None where it does not say.

    A hint: only unpacking shows the truth. Raises CorruptBatchError for data that does not begin as the codec's does.
    """
    view = memoryview(data)
    if codec == 1:
        if len(view) < _GZIP_BYTES_MIN or bytes(view[:3]) != _GZIP_MAGIC:
            raise CorruptBatchError("not gzip: it begins otherwise")
        return int.from_bytes(view[-4:], "little")
    if codec == 2:
        return _snappy_told(view)
    if codec == 3 and bytes(view[:4]) != _LZ4_MAGIC:
        raise CorruptBatchError("not lz4: it begins otherwise")
    if codec == 4:
        return _zstd_told(view)
    return None


def _snappy_told(view: memoryview) -> int:
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_size(view)
    return sum(_snappy_size(block) for block in _xerial_blocks(view))


def _zstd_told(view: memoryview) -> int | None:
    if len(view) < 6 or bytes(view[:4]) != _ZSTD_MAGIC:
        raise CorruptBatchError("not zstd: it begins otherwise")
    head = view[4]
    is_whole = head & 0x20  # one segment, without a window's size, and its own size in at least a byte
    at = 5 + (0 if is_whole else 1) + _ZSTD_DICTIONARY_BYTES[head & 3]
    size_bytes = _ZSTD_SIZE_BYTES[head >> 6] or (1 if is_whole else 0)
    if not size_bytes or len(view) < at + size_bytes:
        return None
    return int.from_bytes(view[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)


def _too_large(limit_bytes: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(
        f"batch decompresses to more than {limit_bytes} bytes (max.decompressed.bytes)",
        limit_bytes=limit_bytes,
    )


def _gzip_decompress(data: Buffer, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = limit_bytes
    rest: Buffer = data
    for _ in range(_GZIP_MEMBERS_MAX):
        unpacker = zlib.decompressobj(wbits=_GZIP_WBITS)
        try:
            part = unpacker.decompress(rest, left + 1)
        except zlib.error as error:
            raise CorruptBatchError(f"not gzip: {error}") from error
        left -= len(part)
        if left < 0:
            raise _too_large(limit_bytes)
        if not unpacker.eof:
            raise CorruptBatchError("gzip data ends early")
        parts.append(part)
        rest = unpacker.unused_data
        if not rest:
            return b"".join(parts)
    raise CorruptBatchError(f"gzip data has more than {_GZIP_MEMBERS_MAX} members")


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingCodecError(
            "snappy, lz4 and zstd batches need pyarrow: pip install 'antiphon[spark]'"
        ) from error
    return pa


def _arrow_codec(name: str, level: int | None = None) -> Any:
    return _pyarrow().Codec(name) if level is None else _pyarrow().Codec(name, compression_level=level)


def _snappy_compress(data: Buffer) -> bytes:
    codec = _arrow_codec("snappy")
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = codec.compress(view[at : at + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (struct.pack(">I", len(block)), block)
    return b"".join(parts)


def _snappy_decompress(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:  # librdkafka sends one raw block
        return _snappy_block(view, limit_bytes)
    parts: list[bytes] = []
    left = limit_bytes
    for block in _xerial_blocks(view):
        parts.append(_snappy_block(block, left))
        left -= len(parts[-1])
    return b"".join(parts)


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    at = len(_XERIAL_HEADER)
    while at < len(view):
        if len(view) - at < 4:
            raise CorruptBatchError("snappy data ends early")
        size = int.from_bytes(view[at : at + 4], "big")
        at += 4
        if size == 0 or size > len(view) - at:
            raise CorruptBatchError(f"snappy block of {size} bytes where {len(view) - at} are left")
        yield view[at : at + size]
        at += size


def _snappy_size(block: memoryview) -> int:
    """The unpacked size in front of a block, a varint."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size
    raise CorruptBatchError("not snappy: no size in front")


def _snappy_block(block: memoryview, limit_bytes: int) -> bytes:
    size = _snappy_size(block)
    if size > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        return bytes(_arrow_codec("snappy").decompress(block, decompressed_size=size, asbytes=True))
    except (OSError, ValueError) as error:
        raise CorruptBatchError(f"not snappy: {error}") from error


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    import xxhash

    codec = _arrow_codec("lz4_raw", level)
    view = memoryview(data)
    header_check = (xxhash.xxh32_intdigest(_LZ4_DESCRIPTOR) >> 8) & 0xFF
    parts: list[Buffer] = [_LZ4_MAGIC, _LZ4_DESCRIPTOR, bytes([header_check])]
    for at in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[at : at + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_STORED_BIT), plain)
    parts.append(bytes(4))
    return b"".join(parts)


def _stream_decompress(name: str, data: Buffer, limit_bytes: int) -> Buffer:
    pa = _pyarrow()
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name) as stream:
            return _read_up_to(stream, limit_bytes)
    except (OSError, ValueError) as error:
        raise CorruptBatchError(f"not {name}: {error}") from error


def _read_up_to(stream: Any, limit_bytes: int) -> bytes:
    """All of a stream. A read takes the memory of all that it asks for, so it asks for a little more each time."""
    parts: list[bytes] = []
    size, step = 0, _FIRST_READ_BYTES
    while True:
        part = stream.read(min(step, limit_bytes + 1 - size))
        if not part:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        step = max(step, size)
