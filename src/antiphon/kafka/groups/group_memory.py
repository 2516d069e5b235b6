"""What the rows of groups of members take of a node's memory, and whose they are: one client leaves room for the others."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import JOIN_EPOCH, Beat, Kind, RowName
from antiphon.shares import Shares, asking

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024  # rows of all groups of a node
MEMBER_BYTES: Final = 256  # about, that a member's row takes beside what it wants
REFUSED_MAX: Final = (
    4_000  # names of one group of which it is known who asked for them, beside those of its rows
)


class KeptRows:
    """The rows of one group.

    Attributes:
        sizes: bytes by row.
        clients: by ids of members, and their expressions: who has asked for them.
        payers: of rows: whose they were when they were written.
        parts: bytes by payer.
    """

    def __init__(self) -> None:
        self.sizes: dict[RowName, int] = {}
        self.clients: dict[str, object] = {}
        self.payers: dict[RowName, object] = {}
        self.parts: Counter[object] = Counter()

    def ask(self, *names: str | None) -> None:
        """The one who asks now wants these members and expressions, unless somebody else did before."""
        if len(self.clients) > REFUSED_MAX + len(self.sizes):  # most of them were refused
            named = {name for _, name in self.sizes}
            self.clients = {name: who for name, who in self.clients.items() if name in named}
        for name in names:
            if name:
                self.clients.setdefault(name, asking.get())


class GroupMemory:
    """See the module's text; of all groups of a kind on a node."""

    def __init__(self) -> None:
        self.kept_bytes = 0
        self._shares = Shares(KEPT_BYTES_MAX, "bytes of groups")

    def check(self, more: int) -> None:
        """Raise OverloadedError where the one who asks now may not have so many bytes more."""
        if more > 0:
            self._shares.check(self.kept_bytes, more)

    def written(self, rows: KeptRows, sizes: Mapping[RowName, int]) -> None:
        """Rows have these sizes by now; 0: they are gone."""
        for name, size in sizes.items():
            had = rows.sizes.pop(name, 0)
            self.kept_bytes += size - had
            rows.parts[rows.payers.pop(name, None)] -= had
            if size:
                payer = rows.clients.get(name[1])
                rows.sizes[name], rows.payers[name] = size, payer
                rows.parts[payer] += size
            elif name[0] in {Kind.MEMBER, Kind.REGEX}:
                rows.clients.pop(name[1], None)
        self._shares.divide(rows, +rows.parts)

    def restored(self, rows: KeptRows, sizes: Mapping[RowName, int]) -> None:
        """The rows were read anew: they are nobody's."""
        self.drop(rows)
        rows.sizes = dict(sizes)
        rows.payers.clear()
        size = sum(sizes.values())
        rows.parts = Counter({None: size})
        self.kept_bytes += size

    def drop(self, rows: KeptRows) -> None:
        """The group is kept here no longer."""
        self._shares.drop(rows)
        self.kept_bytes -= sum(rows.sizes.values())


def more_bytes(group: ConsumerGroup, asked: Beat) -> int:
    """What a heartbeat adds to the rows of a group, about: a member that comes, or wants more than it did."""
    member = group.members.get(asked.member_id)
    wanted = sum(map(len, asked.topics or ())) + len(asked.regex or "")
    if member is not None:
        return wanted - sum(map(len, member.topics)) - len(member.regex or "")
    return wanted + MEMBER_BYTES if asked.epoch == JOIN_EPOCH else 0  # who is no member is told so
