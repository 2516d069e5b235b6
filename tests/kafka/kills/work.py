"""One library's clients, in a process of its own: `python -m tests.kafka.kills.work LIBRARY SERVERS LEDGER`.

Five times in a second it says what was done, as JSON. It takes two lines: `stop`, after which nothing is written any more,
and `end`. SIGUSR1 has it say on stderr where its threads are. With ISOLATION and TOPICS behind, it only reads all of them.
"""

import faulthandler
import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.kafka.kills.faces import Library
from tests.kafka.kills.ledger import Ledger
from tests.kafka.kills.roles import Member, Role, Sender, Transactor, Transformer

JOIN_S: Final = 150.0


def library_of(name: str, told: Callable[[str], None]) -> Library:
    """A process has one library only."""
    if name == "librdkafka":
        from tests.kafka.kills.librdkafka import Librdkafka

        return Librdkafka(told)
    if name == "kafka-python":
        from tests.kafka.kills.kafka_python_library import KafkaPython

        return KafkaPython(told)
    from tests.kafka.kills.aiokafka_library import Aiokafka

    return Aiokafka(told)


class Work:
    """All roles."""

    def __init__(self, name: str, servers: str) -> None:
        self.ledger = Ledger(name)
        library = library_of(name, self._count)
        given = (library, servers, self.ledger)
        self.writers: list[Role] = [Sender(*given), Transactor(*given)]
        self.readers: list[Role] = [Transformer(*given), Member(*given), Member(*given)]
        for role in (*self.writers, *self.readers):
            role.start()

    def _count(self, error: str) -> None:
        self.ledger.told[error] = self.ledger.told.get(error, 0) + 1

    def told(self) -> dict[str, Any]:
        """What was done so far, by role, and how many records the group saw of each topic."""
        done = Counter[str]()
        for role in (*self.writers, *self.readers):
            done[role.what] += role.count
        topics = Counter(topic for topic, _, _ in {record[:3] for record in list(self.ledger.seen)})
        return {
            "done": done,
            "topics": topics,
            "stopped": not any(role.is_alive() for role in self.writers),
            "unexpected": self.ledger.unexpected,
        }


def stop(roles: list[Role]) -> None:
    """Let them end what they are at."""
    for role in roles:
        role.stopping.set()
    for role in roles:
        role.join(JOIN_S)


def say(what: Any) -> None:
    """A line of JSON."""
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


def main(name: str, servers: str, file: str) -> None:
    """See the module's text."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    faulthandler.register(signal.SIGUSR1)
    work = Work(name, servers)
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(0.2):
            say(work.told())

    telling = threading.Thread(target=tell)
    telling.start()
    sys.stdin.readline()
    stop(work.writers)
    sys.stdin.readline()
    stop(work.readers)
    ended.set()
    telling.join()
    Path(file).write_bytes(msgspec.json.encode(work.ledger))


def read(name: str, servers: str, file: str, isolation: str, *topics: str) -> None:
    """Write into the file what a reader finds."""
    found = library_of(name, lambda _error: None).read(servers, topics, isolation)
    Path(file).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    (read if len(sys.argv) > 4 else main)(*sys.argv[1:])
