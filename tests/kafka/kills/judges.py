"""What must be true after all kills. Each judge returns its complaints."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tests.kafka.kills.ledger import (
    COMMITTED,
    UNKNOWN,
    Ledger,
    Record,
    Topics,
    next_library,
    sent_value,
    transaction_values,
)

EXAMPLES: Final = 5
Judge = Callable[[Ledger, Sequence[Record]], list[str]]


def some(what: str, found: Iterable[object]) -> Iterator[str]:
    """A complaint with examples, if there are any."""
    found = list(found)
    if found:
        yield f"{len(found)} {what}: {', '.join(map(str, found[:EXAMPLES]))}"


def of_topic(records: Iterable[Record], topic: str) -> list[Record]:
    """Those of a topic."""
    return [record for record in records if record.topic == topic]


def twice(records: Iterable[Record]) -> list[str]:
    """Values that are there more than once, however they got there."""
    counts = Counter(record.value for record in records)
    return [value for value, count in counts.items() if count > 1]


def by_partition(records: Iterable[Record]) -> dict[int, list[Record]]:
    """In the order of the reader."""
    found: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record)
    return found


def judge_sent(ledger: Ledger, found: Sequence[Record]) -> list[str]:
    """Each acknowledged record is there once, where its producer was told, in the order in which it was sent."""
    records = of_topic(found, Topics.of(ledger.library).sent)
    at = {record.value: record for record in records}
    sent = {sent_value(one.number): one for one in ledger.sent}
    complaints = list(some("acknowledged records are lost", sent.keys() - at.keys()))
    complaints += some("records are there twice", twice(records))
    complaints += some("records were not acknowledged", at.keys() - sent.keys())
    complaints += some(
        "records are elsewhere than was told",
        (
            one
            for value, one in sent.items()
            if value in at
            and (at[value].partition != one.partition or one.offset not in (-1, at[value].offset))
        ),
    )
    for partition, inside in by_partition(records).items():
        complaints += some(
            f"records are out of order in partition {partition}",
            ((a.value, b.value) for a, b in pairwise(inside) if int(a.value) > int(b.value)),
        )
    return complaints


def judge_transactions(ledger: Ledger, found: Sequence[Record]) -> list[str]:
    """Each transaction is there whole or not at all, as its producer was told, and in order."""
    records = of_topic(found, Topics.of(ledger.library).transactions)
    there = {record.value for record in records}
    wrong, torn, known = [], [], set()
    for one in ledger.transactions:
        values = transaction_values(one.number)
        known.update(values)
        count = sum(value in there for value in values)
        if count not in (0, len(values)):
            torn.append(one)
        elif one.outcome == UNKNOWN and not one.found:
            continue
        elif bool(count) != ((one.found or one.outcome) == COMMITTED):
            wrong.append(one)
    complaints = list(some("transactions are there in part", torn))
    complaints += some("transactions did not end as was told", wrong)
    complaints += some("records of transactions are there twice", twice(records))
    complaints += some("records are of no transaction", there - known)
    for partition, inside in by_partition(records).items():
        numbers = [int(record.value.split(".")[0]) for record in inside]
        complaints += some(
            f"transactions are out of order in partition {partition}",
            ((a, b) for a, b in pairwise(numbers) if a > b),
        )
    return complaints


def judge_transformed(ledger: Ledger, found: Sequence[Record]) -> list[str]:
    """What was read, written and committed in transactions: each input once, and in order."""
    inputs = of_topic(found, Topics.of(next_library(ledger.library)).sent)
    outputs = of_topic(found, Topics.of(ledger.library).transformed)
    wanted, there = {record.value for record in inputs}, {record.value for record in outputs}
    complaints = list(some("inputs were not transformed", wanted - there))
    complaints += some("inputs were transformed twice", twice(outputs))
    complaints += some("outputs have no input", there - wanted)
    befores, afters = by_partition(inputs), by_partition(outputs)
    for partition, before in befores.items():
        after = [record.value for record in afters.get(partition, [])]
        if after != [record.value for record in before] and not complaints:
            complaints.append(f"outputs are out of order in partition {partition}")
    return complaints


def judge_group(ledger: Ledger, found: Sequence[Record]) -> list[str]:
    """The group saw each record, where it is, and nothing that is not there."""
    topics = (Topics.of(ledger.library).sent, Topics.of(next_library(ledger.library)).transactions)
    wanted = {record for record in found if record.topic in topics}
    seen = set(ledger.seen)
    complaints = list(some("records were not seen by the group", wanted - seen))
    complaints += some("records were seen that are not there", seen - wanted)
    return complaints


Offsets = Mapping[tuple[str, str, int], Sequence[int]]
"""A group's offsets in a partition, in the order in which they were asked for."""


def judge_offsets(ledgers: Sequence[Ledger], asked: Offsets) -> list[str]:
    """Committed offsets never go back, and are at least what was acknowledged."""
    complaints = list(
        some(
            "committed offsets went back",
            ((*place, a, b) for place, told in asked.items() for a, b in pairwise(told) if b < a),
        )
    )
    last: dict[tuple[str, str, int], int] = {}
    for one in (one for ledger in ledgers for one in ledger.commits):
        place = (one.group, one.topic, one.partition)
        last[place] = max(last.get(place, 0), one.offset)
    complaints += some(
        "acknowledged commits are not there",
        ((*place, end) for place, end in last.items() if (asked.get(place) or [0])[-1] < end),
    )
    return complaints


def judge_errors(ledger: Ledger, _found: Sequence[Record]) -> list[str]:
    """No client got an error that its library does not let an application go on after."""
    return list(ledger.unexpected)


JUDGES: Final[tuple[Judge, ...]] = (
    judge_sent,
    judge_transactions,
    judge_transformed,
    judge_group,
    judge_errors,
)
