"""A node of the fleet as its coordinator sees it: what it promised, what it leads, whom it feeds."""

from collections.abc import Iterator

from antiphon.records.entry_id import EntryId


class FleetNode:
    """One modelled node. Its disk (`heads`, `terms`) outlives its process, what it leads does not."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.alive = False
        self.life = 0
        self.heads: dict[int, EntryId] = {}
        self.terms: dict[int, int] = {}
        self._led: dict[int, int] = {}  # shard -> term
        self._fed: dict[int, set[int]] = {}  # shard -> followers
        self._news: dict[int, None] = {}  # shards whose followers changed since the last heartbeat

    @property
    def incarnation(self) -> str:
        """Changes with each process."""
        return f"{self.number}.{self.life}"

    def start(self) -> None:
        """A process begins."""
        self.alive = True
        self.life += 1

    def stop(self) -> None:
        """The process is gone, and all that it led."""
        self.alive = False
        self._led.clear()
        self._fed.clear()
        self._news.clear()

    def promise(self, shard: int, term: int) -> None:
        """A newer term ends what was led in an older one."""
        if term > self.terms.get(shard, 0):
            self.terms[shard] = term
            self._led.pop(shard, None)
            self._fed.pop(shard, None)

    def lead(self, shard: int, term: int, head: EntryId) -> None:
        """Lead, with the term's first entry committed."""
        self._led[shard] = term
        self._fed[shard] = set()
        self.heads[shard] = head

    def leads(self, shard: int, term: int) -> bool:
        """Is the shard led here in this term?"""
        return self._led.get(shard) == term

    def feed(self, shard: int, follower: int) -> None:
        """A follower has everything; the next heartbeat says so."""
        self._fed[shard].add(follower)
        self._news[shard] = None

    def news(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """(shard, term, live members) of what changed, at most as many as a heartbeat carries."""
        for shard in list(self._news)[:2000]:
            del self._news[shard]
            term = self._led.get(shard)
            if term is not None:
                yield shard, term, tuple(sorted({self.number, *self._fed[shard]}))
