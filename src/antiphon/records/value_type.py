"""The type of a value: bytes, or what a codec of the client makes of them.

Type checkers know a default for it, so `Table` means `Table[bytes]`. Python has such defaults from 3.13 on, and the checkers
bring `typing_extensions` themselves.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ValueT = TypeVar("ValueT", default=bytes)
    ValueT_co = TypeVar("ValueT_co", default=bytes, covariant=True)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")
    # What msgspec takes for a value that comes over the wire.
    ValueT_co = TypeVar("ValueT_co", bound=bytes | None, covariant=True)

__all__ = ["ValueT", "ValueT_co"]
