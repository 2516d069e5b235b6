"""What the clients of a library do, each in a thread, until they are told to stop."""

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.kafka.kills.faces import (
    READ_COMMITTED,
    AbortableError,
    Idempotent,
    Library,
    LostProducerError,
    NotCommittedError,
    Place,
    Transactional,
)
from tests.kafka.kills.ledger import (
    ABORTED,
    COMMITTED,
    PARTITIONS,
    UNKNOWN,
    Commit,
    Ledger,
    Record,
    Sent,
    Topics,
    Transaction,
    next_library,
    sent_value,
    transaction_values,
)

KEYS: Final = 12
AT_ONCE: Final = 4  # records that the idempotent producer sends without a pause
UNDER_WAY_MAX: Final = 2_000
PAUSE_S: Final = 0.08
ABORT_EACH: Final = 5  # transactions
ABANDON_EACH: Final = 40


class Role(threading.Thread):
    """One client. An error that it does not expect ends it, and is in the ledger."""

    what = ""

    def __init__(self, library: Library, servers: str, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.library = library
        self.servers = servers
        self.ledger = ledger
        self.stopping = threading.Event()
        self.count = 0
        self._last_s = 0.0

    def run(self) -> None:
        """See Thread."""
        try:
            self.work()
        except Exception:  # noqa: BLE001 - whatever it is, the judges want to hear of it
            self.ledger.unexpected.append(f"{self.what}: {traceback.format_exc()}")

    def work(self) -> None:
        """Work until `stopping`."""
        raise AssertionError("each role has its work")

    def did(self, count: int = 1) -> None:
        """It got something done."""
        now_s = time.monotonic()
        self.count += count
        if self._last_s and not self.stopping.is_set():
            gap_s = round(now_s - self._last_s, 2)
            self.ledger.gaps[self.what] = max(self.ledger.gaps.get(self.what, 0.0), gap_s)
        self._last_s = now_s


class Sender(Role):
    """An idempotent producer, with keys."""

    what = "idempotent"

    def work(self) -> None:
        """See Role."""
        topic = Topics.of(self.ledger.library).sent
        producer: Idempotent = self.library.idempotent(self.servers)
        number = 0
        while not self.stopping.wait(PAUSE_S):
            if number - self.count > UNDER_WAY_MAX:
                producer.send(topic, [], self._nothing)
                continue
            for each in range(number, number + AT_ONCE):
                producer.send(topic, [(f"k{each % KEYS}", sent_value(each))], self._delivered(each))
            number += AT_ONCE
        producer.close()
        if self.count != number:
            self.ledger.unexpected.append(
                f"{self.what}: {number} records were sent, {self.count} acknowledged"
            )

    def _nothing(self, partition: int, offset: int, error: str) -> None:
        pass

    def _delivered(self, number: int) -> Callable[[int, int, str], None]:
        def told(partition: int, offset: int, error: str) -> None:
            if error:
                self.ledger.unexpected.append(f"{self.what}: record {number}: {error}")
            else:
                self.ledger.sent.append(Sent(number, partition, offset))
                self.did()

        return told


class Transactor(Role):
    """Transactions with a record in each partition. Some are aborted, and some left by a producer that dies."""

    what = "transactions"

    def work(self) -> None:
        """See Role."""
        library = self.ledger.library
        self._topic = Topics.of(library).transactions
        self._name = f"transactor-{library}"
        self._producer = self._made()
        number = 0
        while not self.stopping.wait(PAUSE_S):
            self.ledger.transactions.append(self._one(number))
            self.did()
            number += 1
        self._producer.abandon()

    def _made(self) -> Transactional:
        return made(self.library, self.servers, self._name)

    def _one(self, number: int) -> Transaction:
        committing = False
        try:
            self._producer.begin()
            values = transaction_values(number)
            self._producer.send([(self._topic, at, value) for at, value in enumerate(values)])
            if number % ABANDON_EACH == ABANDON_EACH - 1:
                raise LostProducerError
            if number % ABORT_EACH == ABORT_EACH - 1:
                self._producer.abort()
                return Transaction(number, ABORTED)
            committing = True
            self._producer.commit()
            return Transaction(number, COMMITTED)
        except AbortableError:
            if self._aborted() or not committing:
                return Transaction(number, ABORTED)
        except LostProducerError:
            self._anew()
            if not committing:
                return Transaction(number, ABORTED)
        return Transaction(number, UNKNOWN, self._looked_up(number))

    def _aborted(self) -> bool:
        """Abort it, or let the next producer do so; was that answered? Where it was not, a commit may have been decided."""
        try:
            self._producer.abort()
        except (AbortableError, LostProducerError):
            self._anew()
            return False
        return True

    def _anew(self) -> None:
        """The next producer of the transactional id ends what this one has left; it is decided once that one is there."""
        self._producer.abandon()
        self._producer = self._made()

    def _looked_up(self, number: int) -> str:
        """As an application finds out that does not know how its commit ended."""
        values = set(transaction_values(number))
        found = [
            record
            for record in self.library.read(self.servers, [self._topic], READ_COMMITTED)
            if record.value in values
        ]
        return COMMITTED if found else ABORTED


def made(library: Library, servers: str, name: str) -> Transactional:
    """A transactional producer. Its first call may find the coordinator gone for longer than the library waits."""
    while True:
        try:
            return library.transactional(servers, name)
        except (AbortableError, LostProducerError):
            time.sleep(PAUSE_S)


class Transformer(Role):
    """Reads, writes and commits offsets in transactions: another library's idempotent records, each once."""

    what = "transformed"

    def work(self) -> None:
        """See Role."""
        library = self.ledger.library
        self._source = Topics.of(next_library(library)).sent
        self._target = Topics.of(library).transformed
        self._group = f"transformers-{library}"
        self._name = f"transformer-{library}"
        self._producer = made(self.library, self.servers, self._name)
        self._member = self.library.member(self.servers, self._group, [self._source], transforms=True)
        self._known: dict[Place, int] = {}
        self._assignments = rounds = 0
        while not self.stopping.is_set():
            records = self._member.poll()
            if not self.library.stable and self._member.assignments != self._assignments:
                # What was given anew begins at the committed offset, or before that of a transaction that just ended.
                self._assignments = self._member.assignments
                self._rewind([(self._source, partition) for partition in range(PARTITIONS)])
                continue
            if records:
                rounds += 1
                self._round(records, aborts=rounds % ABORT_EACH == 0)
        self._producer.abandon()
        self._member.close()

    def _round(self, records: Sequence[Record], *, aborts: bool) -> None:
        ends = ends_of(records)
        try:
            self._producer.begin()
            self._producer.send([(self._target, record.partition, record.value) for record in records])
            self._producer.offsets(self._member, self._group, ends)
            if aborts:
                self._producer.abort()
                self._rewind(ends)
                return
            self._producer.commit()
        except AbortableError:
            self._abort()
            self._rewind(ends)
        except LostProducerError:
            self._anew()
            self._rewind(ends)
        else:
            self._known.update(ends)
            self.ledger.commits.extend(Commit(self._group, *place, end) for place, end in ends.items())
            self.ledger.transformed += len(records)
            self.did(len(records))

    def _abort(self) -> None:
        try:
            self._producer.abort()
        except (AbortableError, LostProducerError):
            self._anew()

    def _anew(self) -> None:
        self._producer.abandon()
        self._producer = made(self.library, self.servers, self._name)

    def _rewind(self, places: Iterable[Place]) -> None:
        """Go on where the group's offsets are. What was committed here is known, where the library does not wait for it."""
        for place, offset in self._member.committed(list(places)).items():
            known = 0 if self.library.stable else self._known.get(place, 0)
            self._member.seek(place, max(offset, known))


class Member(Role):
    """One of a group of two: reads another library's transactions and its own library's idempotent records, and commits."""

    what = "seen"

    def work(self) -> None:
        """See Role."""
        library = self.ledger.library
        group = f"readers-{library}"
        topics = [Topics.of(library).sent, Topics.of(next_library(library)).transactions]
        member = self.library.member(self.servers, group, topics, transforms=False)
        while not self.stopping.is_set():
            records = member.poll()
            if not records:
                continue
            self.ledger.seen.extend(records)
            self.did(len(records))
            ends = ends_of(records)
            try:
                member.commit(ends)
            except NotCommittedError as error:
                self.library.told(str(error))
            else:
                self.ledger.commits.extend(Commit(group, *place, end) for place, end in ends.items())
        member.close()


def ends_of(records: Sequence[Record]) -> dict[Place, int]:
    """The offsets to commit after these records."""
    return {(record.topic, record.partition): record.offset + 1 for record in records}
