"""How large answers to requests were, so that the next one like it is begun when there is room for its answer."""

from typing import Final

KEPT_MAX: Final = 1024
BODY_BYTES_MAX: Final = 256  # of requests that are remembered

Key = tuple[int, int, bytes]
"""Api, version and body of a request."""


class AnswerSizes:
    """The last answers' sizes by request, the least recently used first."""

    def __init__(self) -> None:
        self._sizes: dict[Key, int] = {}

    def of(self, key: Key) -> int | None:
        """The size of the last answer to this request; None: not known."""
        return self._sizes.get(key)

    def note(self, key: Key, size_bytes: int) -> None:
        """An answer had this size."""
        if len(key[2]) > BODY_BYTES_MAX:
            return
        self._sizes.pop(key, None)
        self._sizes[key] = size_bytes
        if len(self._sizes) > KEPT_MAX:
            del self._sizes[next(iter(self._sizes))]
