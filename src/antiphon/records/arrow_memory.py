"""Memory as the kernels of `arrow_kernels` see it: addresses, and what stands there.

numba counts references to every array that goes into a function, at a cost of hundreds of nanoseconds a record (measured:
280 with arrays, 10 with addresses). So kernels take the addresses of buffers, and who calls them keeps the buffers alive and
has checked their sizes. Numbers are in the machine's byte order, and need no alignment.
"""

from typing import TYPE_CHECKING, Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

_Built = tuple[Any, "Callable[..., Any]"]


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
