"""One face for the clients of all libraries, so that they do the same work.

The clients of `transactional_clients` say of whatever goes wrong that they are fenced, which is enough where nobody dies.
Here an application goes on after each error as its library tells it to.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tests.kafka.kills.ledger import Record

CALL_S: Final = 60.0  # no call of a library takes longer
SESSION_MS: Final = 6_000
TRANSACTION_MS: Final = 30_000
READ_COMMITTED: Final = "read_committed"

Place = tuple[str, int]  # topic and partition
Delivered = Callable[[int, int, str], None]  # partition, offset, error or ""


class AbortableError(Exception):
    """The library says: abort the transaction, and go on with the next one."""


class LostProducerError(Exception):
    """The library says: this producer is of no use any more, make another one."""


class NotCommittedError(Exception):
    """A group's offsets were not committed, because the group or its coordinator changes. Poll, and commit the next time."""


class Idempotent(Protocol):
    """An idempotent producer with `acks=all`."""

    def send(self, topic: str, records: Sequence[tuple[str, str]], done: Delivered) -> None:
        """Send keys with values."""

    def close(self) -> None:
        """Wait until all is acknowledged or failed."""


class Transactional(Protocol):
    """A transactional producer that has its producer id. Raises AbortableError and LostProducerError."""

    def begin(self) -> None: ...
    def send(self, records: Sequence[tuple[str, int, str]]) -> None:
        """Topics, partitions and values; they are all acknowledged."""

    def offsets(self, member: Any, group: str, offsets: Mapping[Place, int]) -> None:
        """Of a member's group, with the transaction."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def abandon(self) -> None:
        """Close it as if its process had ended in the middle of a transaction, as far as the library allows it."""


class Member(Protocol):
    """A consumer with `read_committed` in a group, without commits of its own."""

    assignments: int  # how often it was given partitions

    def poll(self) -> list[Record]: ...
    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Raises NotCommittedError."""

    def committed(self, places: Sequence[Place]) -> dict[Place, int]:
        """Of its group; 0 where nothing was committed."""

    def seek(self, place: Place, offset: int) -> None: ...
    def close(self) -> None: ...


class Library(Protocol):
    """What makes the clients of a library. `told` is called with each error after which the client goes on by itself."""

    stable: bool  # its consumers wait, with the group's coordinator, for offsets of open transactions
    told: Callable[[str], None]

    def idempotent(self, servers: str) -> Idempotent: ...
    def transactional(self, servers: str, name: str) -> Transactional: ...
    def member(self, servers: str, group: str, topics: Sequence[str], *, transforms: bool) -> Member: ...
    def read(self, servers: str, topics: Sequence[str], isolation: str) -> list[Record]:
        """All records up to the end as it is now, in the order of offsets in each partition."""
