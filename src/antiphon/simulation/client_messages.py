"""What simulated clients and nodes say to each other, and what clients write."""

from typing import Final, NamedTuple

import msgspec

CLIENTS: Final = 1_000  # addresses of clients start here, those of nodes at 0


class ClientData(NamedTuple):
    """Content of a client's entry. (client, sequence) is unique: the same request sent again carries the same pair."""

    client: int
    sequence: int
    expected: int = -1  # the end that the log had to have for it


class TermStart(NamedTuple):
    """Content of the entry with which a leader opens its term."""

    term_start: int
    node: int


class MembersData(NamedTuple):
    """Content of a members entry."""

    voters: tuple[int, ...]
    outgoing: tuple[int, ...]
    learners: tuple[int, ...]


class CommitMark(NamedTuple):
    """Content of an entry that tells that everything before `high_watermark` was committed."""

    term: int
    high_watermark: int


class AppendRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Append one entry of `count` offsets; with `expected` >= 0 only if the log ends there (S2.12)."""

    shard: int
    client: int
    sequence: int
    count: int
    expected: int = -1


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Read the state, linearizably."""

    shard: int
    client: int
    sequence: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Outcome: `ok`, `refused` (condition does not hold) or `not_leader` (also: not ready); the client tries another node.

    For an append `offset` is where it stands, for a read the end of the state that was read (`chain` is its content), for
    a refusal the log's end.
    """

    client: int
    sequence: int
    outcome: str
    offset: int = -1
    chain: int = 0
    leader: int = -1
