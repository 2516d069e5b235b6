"""The four codecs of RecordBatch v2, with a bound on what a hostile batch may unpack to.

gzip comes with Python. snappy, lz4 and zstd come with pyarrow, which is loaded at the first such batch; without it they
are refused with a message that says what to install. Nodes never compress or decompress: they store what clients sent.
"""

import struct
import zlib
from typing import Any, Final

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.records.batch import CODEC_NAMES, Buffer

DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
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


def codec_number(name: str) -> int:
    """Number of a codec by its Kafka name; raises InvalidRequestError."""
    if name not in CODEC_NAMES:
        raise InvalidRequestError(f"unknown compression {name!r}; there is {', '.join(CODEC_NAMES)}")
    return CODEC_NAMES.index(name)


def compress(codec: int, data: Buffer) -> bytes:
    """Compress the records of one batch as Kafka's clients expect to find them (`codec` 0 gives plain bytes)."""
    if codec == 0:
        return bytes(data)
    if codec == 1:
        packer = zlib.compressobj(wbits=_GZIP_WBITS)
        return packer.compress(data) + packer.flush()
    if codec == 2:
        return _snappy_compress(data)
    if codec == 3:
        return _lz4_compress(data)
    if codec == 4:
        return bytes(_arrow_codec("zstd").compress(data, asbytes=True))
    raise InvalidRequestError(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Undo `compress`; CorruptBatchError for bytes that are not of that codec or give more than `limit_bytes`."""
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
    raise CorruptBatchError(f"unknown compression codec {codec}", codec=codec)


def _too_large(limit_bytes: int) -> CorruptBatchError:
    return CorruptBatchError(f"batch decompresses to more than {limit_bytes} bytes", limit_bytes=limit_bytes)


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
        raise InvalidRequestError(
            "snappy, lz4 and zstd batches need pyarrow: pip install 'antiphon[spark]'"
        ) from error
    return pa


def _arrow_codec(name: str) -> Any:
    return _pyarrow().Codec(name)


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
    at = len(_XERIAL_HEADER)
    while at < len(view):
        if len(view) - at < 4:
            raise CorruptBatchError("snappy data ends early")
        size = int.from_bytes(view[at : at + 4], "big")
        at += 4
        if size == 0 or size > len(view) - at:
            raise CorruptBatchError(f"snappy block of {size} bytes where {len(view) - at} are left")
        parts.append(_snappy_block(view[at : at + size], left))
        left -= len(parts[-1])
        at += size
    return b"".join(parts)


def _snappy_block(block: memoryview, limit_bytes: int) -> bytes:
    size = shift = 0
    for byte in block[:5]:  # the block starts with its unpacked size, a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise CorruptBatchError("not snappy: no size in front")
    if size > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        return bytes(_arrow_codec("snappy").decompress(block, decompressed_size=size, asbytes=True))
    except (OSError, ValueError) as error:
        raise CorruptBatchError(f"not snappy: {error}") from error


def _lz4_compress(data: Buffer) -> bytes:
    import xxhash

    codec = _arrow_codec("lz4_raw")
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
            plain = stream.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise CorruptBatchError(f"not {name}: {error}") from error
    if len(plain) > limit_bytes:
        raise _too_large(limit_bytes)
    return bytes(plain)
