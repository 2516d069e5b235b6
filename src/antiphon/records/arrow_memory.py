"""What the kernels between Arrow and RecordBatches are made of: compiled by numba, for what is done once per record.

numba counts references to every array that goes into a function, at a cost of hundreds of nanoseconds a record (measured:
280 with arrays, 10 with addresses). So kernels take the addresses of buffers; who calls them keeps the buffers alive and has
checked their sizes. Numbers in memory are in the machine's byte order, and need no alignment.

A column of bytes is the tuple `(offsets, wide, data, valid, first_bit)`: row n is the bytes from `offsets[n]` to
`offsets[n + 1]` of `data`; offsets are int64 where `wide` is 1, else int32; `valid` is the bitmap of which the column's bits
begin at `first_bit`, 0 where no row is null.

Compiled code is kept on disk, in `__pycache__` or, where that cannot be written to, in the user's cache. A kernel calls
what stands in its own file and in this one, and each is compiled for one list of types: who calls it passes plain integers,
tuples of them, and arrays that can be written to. Loading numba takes about a quarter of a second of a process, so it is
loaded when there are rows to move.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from zlib import crc32

from antiphon.errors import InvalidRequestError


class MissingLibraryError(InvalidRequestError, ModuleNotFoundError):
    """An optional library is not installed; `name` says which, as with Python's own error."""


try:
    import numba
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ModuleNotFoundError as missing:
    told = MissingLibraryError(
        f"{missing.name} is not installed in this Python ({sys.executable}), and rows are moved by what it compiles: "
        "pip install 'antiphon[spark]', on every executor of Spark too, or 'antiphon[arrow]' without Spark"
    )
    told.name = missing.name
    raise told from missing

BytesColumn = tuple[int, int, int, int, int]
Function = TypeVar("Function", bound=Callable[..., Any])
_Built = tuple[Any, Callable[..., Any]]


def _fingerprint() -> str:
    try:
        return f"{crc32(Path(__file__).read_bytes()):08x}"
    except OSError:  # the package is not made of files
        return "unknown"


# numba sees by a kernel's own file whether the kept code is of this source. What of this file was compiled into it is told
# by its name.
_FINGERPRINT: Final = _fingerprint()


def kernel(function: Function) -> Function:
    """For what Python calls: compiled once and kept. It does not hold the interpreter's lock."""
    function.__qualname__ = f"{function.__name__}_{_FINGERPRINT}"
    try:
        compiled: Function = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no place on disk to keep it: compile it in every process
        compiled = numba.njit(nogil=True)(function)
    return compiled


def part(function: Function) -> Function:
    """For what only kernels call: compiled into them."""
    compiled: Function = numba.njit(nogil=True)(function)
    return compiled


def inlined(function: Function) -> Function:
    """The same, put into the code that calls it: for what is less work than a call."""
    compiled: Function = numba.njit(nogil=True, inline="always")(function)
    return compiled


def _pointer(builder: Any, address: Any, bits: int = 8) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _loader(bits: int, *, signed: bool) -> Any:
    def typed(_typing: Any, _address: Any) -> _Built:
        def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            found = builder.load(_pointer(builder, arguments[0], bits), align=1)
            if bits == 64:
                return found
            extend = builder.sext if signed else builder.zext
            return extend(found, ir.IntType(64))

        return types.int64(types.int64), build

    return intrinsic(typed)


def _storer(bits: int) -> Any:
    def typed(_typing: Any, _address: Any, _value: Any) -> _Built:
        def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            builder.store(value, _pointer(builder, arguments[0], bits), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), build

    return intrinsic(typed)


byte_at = _loader(8, signed=False)
int32_at = _loader(32, signed=True)
int64_at = _loader(64, signed=True)
put_byte = _storer(8)
put_int32 = _storer(32)
put_int64 = _storer(64)


def _copy(_typing: Any, _target: Any, _source: Any, _count: Any) -> _Built:
    """Target, source and count of bytes; the ranges do not overlap."""

    def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        cgutils.raw_memcpy(
            builder, _pointer(builder, arguments[0]), _pointer(builder, arguments[1]), arguments[2], 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


copy = intrinsic(_copy)


@part
def is_null(valid: int, bit: int) -> bool:
    """Is the bit of a validity bitmap 0?"""
    return valid != 0 and (byte_at(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0


@part
def edge(offsets: int, wide: int, row: int) -> Any:
    """An offset of a column of bytes or lists."""
    return int64_at(offsets + 8 * row) if wide else int32_at(offsets + 4 * row)


@part
def piece(column: BytesColumn, row: int) -> tuple[int, int]:
    """Address and size of a row's bytes; size -1 for null."""
    offsets, wide, data, valid, first_bit = column
    if is_null(valid, first_bit + row):
        return 0, -1
    start = edge(offsets, wide, row)
    return data + start, edge(offsets, wide, row + 1) - start


@inlined
def raw_number(at: int, limit: int) -> tuple[int, int]:
    """A number of a record as it is written, zigzag, and where it ends: 0 if that is not before `limit`."""
    value = shift = ended = 0
    while at < limit:
        byte = byte_at(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            ended = at
            break
        shift += 7
    return value, ended
