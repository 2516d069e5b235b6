"""What clients of a simulated table say to its leader, and what stands in its log."""

from crc32c import crc32c

from antiphon.simulation.client_messages import Answer, AppendRequest, ClientData, ReadRequest
from antiphon.wire.requests import Delete, Put

KeyState = tuple[int, bytes] | None  # id of the version and value; None: the key is not there
OpOutcome = tuple[int, int]  # `OpStatus`, and id of the version that was made or found (-1: none)


class TableWriteRequest(AppendRequest, frozen=True, array_like=True, tag=True, kw_only=True):
    """Put or delete a key, perhaps only if it has a certain version."""

    op: Put | Delete


class TableReadRequest(ReadRequest, frozen=True, array_like=True, tag=True, kw_only=True):
    """Get a key, linearizably."""

    key: bytes


class TableAnswer(Answer, frozen=True, array_like=True, tag=True, kw_only=True):
    """`result`: outcome of a write or what a get found; `offset`: where the effect stands, or the end of what was seen."""

    result: OpOutcome | KeyState


class TableData(ClientData):
    """Content of a table's entry: the batch of effects that a leader has judged."""

    batch: bytes

    @classmethod
    def of(cls, client: int, sequence: int, batch: bytes) -> "TableData":
        """The effects of one request."""
        data = cls(client, sequence)
        data.batch = batch
        return data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableData) and tuple(self) == tuple(other) and self.batch == other.batch

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        """Of numbers only, so that it is the same in every process."""
        return hash((*self, crc32c(self.batch)))
