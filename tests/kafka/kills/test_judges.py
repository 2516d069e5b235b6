"""The judges of the kills: silent about what is right, and each complains about what it is there for."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.kafka.kills import judges
from tests.kafka.kills.ledger import (
    ABORTED,
    COMMITTED,
    LIBRARIES,
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

LIBRARY = LIBRARIES[0]
OWN, OTHER = Topics.of(LIBRARY), Topics.of(next_library(LIBRARY))
PLACE = ("readers", OWN.sent, 0)


@dataclass
class Run:
    """Of one library, as it should be."""

    ledger: Ledger = field(default_factory=lambda: Ledger(LIBRARY))
    found: list[Record] = field(default_factory=list)
    asked: dict[tuple[str, str, int], list[int]] = field(default_factory=lambda: {PLACE: [0, 2, 4]})

    def __post_init__(self) -> None:
        for number in range(6):
            partition, offset = number % 2, number // 2
            self.ledger.sent.append(Sent(number, partition, offset))
            self.found.append(Record(OWN.sent, partition, offset, sent_value(number)))
            self.found.append(Record(OTHER.sent, partition, offset, sent_value(number)))
            self.found.append(Record(OWN.transformed, partition, offset, sent_value(number)))
        for number in (0, 2, 4):
            for partition, value in enumerate(transaction_values(number)):
                self.found.append(Record(OWN.transactions, partition, number, value))
                self.found.append(Record(OTHER.transactions, partition, number, value))
        self.ledger.transactions += [
            Transaction(0, COMMITTED),
            Transaction(1, ABORTED),
            Transaction(2, UNKNOWN, COMMITTED),
            Transaction(3, UNKNOWN, ABORTED),
            Transaction(4, UNKNOWN),
            Transaction(5, UNKNOWN),
        ]
        self.ledger.seen += [one for one in self.found if one.topic in (OWN.sent, OTHER.transactions)] * 2
        self.ledger.commits += [Commit(*PLACE, 2), Commit(*PLACE, 4)]

    def complaints(self) -> list[str]:
        """Of all judges."""
        found = [said for judge in judges.JUDGES for said in judge(self.ledger, self.found)]
        return found + judges.judge_offsets([self.ledger], self.asked)

    def of(self, topic: str) -> list[int]:
        """Where the records of a topic are."""
        return [at for at, record in enumerate(self.found) if record.topic == topic]

    def lose(self, topic: str) -> None:
        """One record."""
        del self.found[self.of(topic)[-1]]

    def double(self, topic: str) -> None:
        """One record, which comes again at the end."""
        record = self.found[self.of(topic)[-1]]
        self.found.append(record._replace(offset=record.offset + 1))

    def swap(self, topic: str) -> None:
        """The values of the first and of the last record of partition 0."""
        inside = [at for at in self.of(topic) if self.found[at].partition == 0]
        first, last = inside[0], inside[-1]
        values = self.found[first].value, self.found[last].value
        self.found[first] = self.found[first]._replace(value=values[1])
        self.found[last] = self.found[last]._replace(value=values[0])

    def show(self, number: int, partitions: int = 3) -> None:
        """Records of a transaction."""
        for partition, value in enumerate(transaction_values(number)[:partitions]):
            self.found.append(Record(OWN.transactions, partition, 99, value))


def test_nothing_is_said_of_what_is_right() -> None:
    assert Run().complaints() == []


WRONG: dict[str, tuple[Callable[[Run], object], str]] = {
    "lost": (lambda run: run.lose(OWN.sent), "acknowledged records are lost"),
    "doubled": (lambda run: run.double(OWN.sent), "records are there twice"),
    "not acknowledged": (lambda run: run.ledger.sent.pop(), "records were not acknowledged"),
    "elsewhere": (
        lambda run: run.ledger.sent.__setitem__(0, Sent(0, 0, 7)),
        "records are elsewhere than was told",
    ),
    "out of order": (lambda run: run.swap(OWN.sent), "records are out of order in partition 0"),
    "torn": (lambda run: run.lose(OWN.transactions), "transactions are there in part"),
    "commit lost": (
        lambda run: run.ledger.transactions.append(Transaction(6, COMMITTED)),
        "transactions did not end as was told",
    ),
    "abort visible": (lambda run: run.show(1), "transactions did not end as was told"),
    "abort visible in part": (lambda run: run.show(1, 1), "transactions are there in part"),
    "unknown in part": (lambda run: run.show(5, 2), "transactions are there in part"),
    "looked up otherwise": (lambda run: run.show(3), "transactions did not end as was told"),
    "transaction doubled": (lambda run: run.show(4), "records of transactions are there twice"),
    "transaction of nobody": (lambda run: run.show(9), "records are of no transaction"),
    "transactions out of order": (
        lambda run: run.swap(OWN.transactions),
        "transactions are out of order in partition 0",
    ),
    "not transformed": (lambda run: run.lose(OWN.transformed), "inputs were not transformed"),
    "transformed twice": (lambda run: run.double(OWN.transformed), "inputs were transformed twice"),
    "transformed from nothing": (lambda run: run.lose(OTHER.sent), "outputs have no input"),
    "transformed out of order": (
        lambda run: run.swap(OWN.transformed),
        "outputs are out of order in partition 0",
    ),
    "not seen": (
        lambda run: setattr(run.ledger, "seen", run.ledger.seen[1 : len(run.ledger.seen) // 2]),
        "records were not seen by the group",
    ),
    "aborted seen": (
        lambda run: run.ledger.seen.append(Record(OTHER.transactions, 0, 98, "1.0")),
        "records were seen that are not there",
    ),
    "offsets went back": (lambda run: run.asked[PLACE].append(3), "committed offsets went back"),
    "commit not there": (
        lambda run: run.ledger.commits.append(Commit(*PLACE, 5)),
        "acknowledged commits are not there",
    ),
    "offset forgotten": (lambda run: run.asked.clear(), "acknowledged commits are not there"),
    "error": (lambda run: run.ledger.unexpected.append("fatal"), "fatal"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_each_judge_says_what_is_wrong(wrong: str) -> None:
    run = Run()
    break_it, complaint = WRONG[wrong]
    break_it(run)
    assert any(complaint in said for said in run.complaints()), run.complaints()
