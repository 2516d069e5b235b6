"""What operators ask for by name, against what `__cluster` says of it, version by version, and what nodes know of it."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from antiphon.kafka import error_codes as code
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.cluster_log import ClusterLog
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.kafka_client import KafkaClient
    from antiphon.simulation.cluster.machine import Machine

K = TypeVar("K")
V = TypeVar("V")


class _Asked(Generic[V]):
    """What an operator asked for of one name; None: that there be none."""

    __slots__ = ("doubtful", "last")

    def __init__(self) -> None:
        self.last: V | None = None  # that was acknowledged
        self.doubtful: list[
            V | None
        ] = []  # not acknowledged: they are under way, or may still be carried out

    def may_be(self, value: V | None) -> bool:
        """May it be so now?"""
        return value == self.last or value in self.doubtful


class AskedFor(Generic[K, V]):
    """Judges what is set and taken back, where each name has one operator, who asks for one thing at a time.

    Every version in `__cluster` is one that was asked for. What was acknowledged is there, and stays until something else
    is asked for. A node knows what the metadata says that it knows, and in the end all nodes know what is committed.

    `kind` begins the names of what is violated. `read` finds all that is set in the metadata, a node's or what is
    committed. `words` says that a name has a value.
    """

    def __init__(
        self,
        cluster: "SimulatedCluster",
        kind: str,
        read: Callable[[Any], dict[K, V]],
        words: Callable[[K, V | None], str],
    ) -> None:
        self._cluster, self._kind = cluster, kind
        self._read, self._words = read, words
        self._log = ClusterLog(cluster)
        self._versions: Final = [-1]  # in which it changed, and to what
        self._books: Final[list[dict[K, V]]] = [{}]
        self._asked: dict[K, _Asked[V]] = {}

    @property
    def books(self) -> list[dict[K, V]]:
        """All that was set, at each time that it was something else."""
        self._follow()
        return self._books

    def begin(self, name: K, value: V | None) -> int:
        """Something is going to be asked for; the version since which it may be so."""
        self._follow()
        self._asked.setdefault(name, _Asked()).doubtful.append(value)
        return self._versions[-1]

    def acknowledged(self, name: K, value: V | None, since: int) -> None:
        """It was so in some version since it was asked for, and is so unless one in doubt was carried out later."""
        self._follow()
        asked = self._asked[name]
        asked.doubtful.remove(value)
        first = bisect_right(self._versions, since) - 1
        self._require(
            any(book.get(name) == value for book in self._books[first:]),
            "kept",
            f"{self._words(name, value)} was acknowledged, and is in no version of `__cluster` since {since}",
        )
        asked.last = value
        now = self._books[-1].get(name)
        self._require(
            asked.may_be(now),
            "kept",
            f"{self._words(name, value)} was acknowledged, and `__cluster` says {self._words(name, now)}",
        )

    async def ask_by_kafka(
        self, client: "KafkaClient", resource_type: int, resource: str, values: Mapping[str, str | None]
    ) -> bool:
        """Ask any node to set something (None: to take it back); is it acknowledged? All that is asked for makes sense."""
        try:
            found = await client.alter_configs(resource_type, resource, values, PATIENCE_S)
        except NoAnswerError:
            return False
        self._require(
            found.error_code not in {code.INVALID_CONFIG, code.INVALID_REQUEST},
            "refused",
            f"{values} for {resource or 'all'} is refused: {found.error_message}",
        )
        return bool(found.error_code == code.NONE)

    def known_by(self, machine: "Machine") -> dict[K, V] | None:
        """What a node knows, if it knows any metadata, which is what was committed up to there."""
        node = machine.node
        if node is None or node.view.version < 0:
            return None
        self._follow()
        book = self._books[bisect_right(self._versions, node.view.version) - 1]
        known = self._read(node.view)
        self._require(
            known == book,
            "known",
            f"node {node.node_id} at version {node.view.version} knows {known}, `__cluster` says {book}",
        )
        return book

    def check_end(self) -> "list[Machine]":
        """What was acknowledged is kept. The machines whose nodes must know it, and are at a version that has it."""
        self._follow()
        for name, asked in self._asked.items():
            now = self._books[-1].get(name)
            self._require(
                asked.may_be(now),
                "kept",
                f"in the end it is {self._words(name, now)}; {self._words(name, asked.last)} was acknowledged",
            )
        found = []
        for machine in self._cluster.machines:
            node = machine.node
            if node is not None and node.agent.registered.is_set():
                self._require(
                    node.view.version >= self._versions[-1],
                    "known",
                    f"in the end node {node.node_id} knows version {node.view.version}, {self._versions[-1]} is committed",
                )
                found.append(machine)
        return found

    def _follow(self) -> None:
        for version in self._log.news():
            book, before = self._read(self._log.state), self._books[-1]
            if book == before:
                continue
            for name in {**before, **book}:
                value, asked = book.get(name), self._asked.get(name)
                self._require(
                    value == before.get(name) or (asked is not None and asked.may_be(value)),
                    "asked-for",
                    f"at version {version} `__cluster` says {self._words(name, value)}, which nobody asked for",
                )
            self._versions.append(version)
            self._books.append(book)

    def _require(self, condition: object, what: str, message: str) -> None:
        require(condition, f"{self._kind}-{what}", message)
