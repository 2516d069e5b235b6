"""What the first lines of a request say."""

from antiphon.http.access import path_of
from antiphon.http.board import API, PREFIX, Board


def is_for_board(request_line: bytes) -> bool:
    """Does the dashboard answer such a request?"""
    words = request_line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return False
    path = path_of(request_line)
    if not Board.takes(path):
        return False
    return words[0] in {b"GET", b"HEAD"} or path.startswith(API) or (words[0], path[:4]) == (b"POST", PREFIX)


def body_bytes(lines: list[bytes]) -> int:
    """How long the body is of a request whose body is read."""
    if not lines[0].startswith(b"POST ") or not is_for_board(lines[0]):
        return 0
    said = next(
        (value for name, _, value in map(halves, lines[1:]) if name.lower() == b"content-length"), b""
    )
    return int(said) if said.strip().isdigit() and len(said) < 12 else 0


def halves(line: bytes) -> tuple[bytes, bytes, bytes]:
    """The name of a header's line, the colon, and the value."""
    return line.partition(b":")
