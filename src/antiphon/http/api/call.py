"""What a handler is given beside its parameters, and how lists are cut."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from antiphon.gateway.interface import Gateway
from antiphon.http.api.answers import Answer, Data, Page
from antiphon.http.api.asked import Listed
from antiphon.http.pages.asking import Asker
from antiphon.security.authorizer import Rights

A = TypeVar("A", bound=Answer)
T = TypeVar("T")
U = TypeVar("U")


class Call(NamedTuple):
    """One request: of whom, from where, and whom it can ask. `mutates` takes how many partitions it makes or removes."""

    gateway: Gateway
    rights: Rights
    asker: Asker
    mutates: Callable[[int], None]
    host: str = ""


def cut(rows: Sequence[T], asked: Listed) -> Sequence[T]:
    """The rows of one piece."""
    return rows[asked.start : asked.start + asked.limit]


def told(kind: type[A], found: object, **besides: Any) -> A:
    """The answer that says what `found` has under the names of its fields, and what is said besides or instead."""
    same = {name: getattr(found, name) for name in kind.__struct_fields__ if name not in besides}
    return msgspec.convert({**same, **besides}, kind)


def page(rows: Sequence[T], asked: Listed, tell: Callable[[T], U], *, is_partial: bool = False) -> Page[U]:
    """One piece of a list; only its rows are told."""
    some, start = cut(rows, asked), asked.start
    end = start + len(some)
    following = end if some and end < len(rows) else None
    return Page(
        items=[tell(one) for one in some],
        start=start,
        total=len(rows),
        next=following,
        is_partial=is_partial,
    )


def data(content: bytes, max_bytes: int) -> Data:
    """Bytes as they are told."""
    part, is_cut = content[:max_bytes], len(content) > max_bytes
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # A letter that the cut goes through is no reason to take text for something else.
        if not is_cut or error.start < len(part) - 3:
            return Data(text=None, base64=part, size_bytes=len(content), is_cut=is_cut)
        text = part[: error.start].decode()
    return Data(text=text, base64=None, size_bytes=len(content), is_cut=is_cut)
