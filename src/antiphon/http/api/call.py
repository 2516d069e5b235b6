"""What a handler is given beside its parameters, and how lists are cut."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from antiphon.gateway.interface import Gateway
from antiphon.http.api.answers import Data, Page
from antiphon.http.pages.asking import Asker
from antiphon.security.authorizer import Rights

T = TypeVar("T")
U = TypeVar("U")


class Call(NamedTuple):
    """One request: of whom, from where, and whom it can ask. `mutates` takes how many partitions it makes or removes."""

    gateway: Gateway
    rights: Rights
    asker: Asker
    mutates: Callable[[int], None]
    host: str = ""


def cut(rows: Sequence[T], start: int, limit: int) -> Sequence[T]:
    """The rows of one piece."""
    return rows[start : start + limit]


def page(
    rows: Sequence[T], start: int, limit: int, tell: Callable[[T], U], *, is_partial: bool = False
) -> Page[U]:
    """One piece of a list; only its rows are told."""
    some = cut(rows, start, limit)
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
