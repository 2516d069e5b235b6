"""Rules that merge what several writers wrote to one key (C11).

With `writers=multi` the changes of a table arrive in another order on each replica. All replicas end with the same
rows, because a key's state is a *cell* and two cells are merged by a rule that is

* commutative: `rule(a, b) == rule(b, a)`,
* associative: `rule(rule(a, b), c) == rule(a, rule(b, c))`,
* idempotent: `rule(a, a) == a`.

Then the order, the grouping and the repetition of changes make no difference. A removed key is a cell too (a
tombstone), because a removal must win over an older put that arrives later. `check_rule` looks for samples that break
the laws.

`last-writer-wins` is the default. Custom rules are registered by name, here or by an installed package:

    [project.entry-points."antiphon.conflict_rules"]
    largest = "my_package:largest"      # a function of two cells, or a `ConflictRule`

The name goes into the table's setting `conflict`, and every node needs the same function under it.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from itertools import product
from typing import Final, NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.records.changes import VersionTuple

ENTRY_POINTS: Final = "antiphon.conflict_rules"
DEFAULT_RULE: Final = "last-writer-wins"

_INDEX_BITS: Final = 17
_ORIGIN_BITS: Final = 5
LSN_MAX: Final = (1 << (63 - _INDEX_BITS - _ORIGIN_BITS)) - 1
INDEX_MAX: Final = (1 << _INDEX_BITS) - 1


class Stamp(NamedTuple):
    """When a change was made, and by which writer: no two changes of one key have the same stamp."""

    timestamp_ms: int
    origin: int
    lsn: int
    place: int


class Cell(NamedTuple):
    """The state of one key: `value` None where it is removed. `version` is (id, modifications, created ms, modified ms)."""

    value: bytes | None
    version: VersionTuple

    @property
    def stamp(self) -> Stamp:
        """When this state was written, and by which writer."""
        return Stamp(self.version[3], *unpack_id(self.version[0]))


MergeFunction = Callable[[Cell, Cell], Cell]


class ConflictRule(NamedTuple):
    """A rule: `merge` returns the merged cell of two cells of one key.

    `forgets`: a tombstone that every replica has may be dropped, because every later change wins over it anyway.
    """

    merge: MergeFunction
    forgets: bool = False


def pack_id(lsn: int, origin: int, index: int) -> int:
    """The version id of a change: that of operation `index` in entry `lsn` of `origin`; the same on every replica."""
    if not (0 < lsn <= LSN_MAX and 0 < origin < 1 << _ORIGIN_BITS and 0 <= index <= INDEX_MAX):
        raise InvalidRequestError(f"no version id for operation {index} in entry {lsn} of origin {origin}")
    return (lsn << _ORIGIN_BITS | origin) << _INDEX_BITS | index


def unpack_id(version_id: int) -> tuple[int, int, int]:
    """(origin, LSN, index) of a version id."""
    rest = version_id >> _INDEX_BITS
    return rest & ((1 << _ORIGIN_BITS) - 1), rest >> _ORIGIN_BITS, version_id & INDEX_MAX


def last_writer_wins(one: Cell, other: Cell) -> Cell:
    """The cell with the greater (timestamp, origin, LSN)."""
    return one if one.stamp >= other.stamp else other


def first_writer_wins(one: Cell, other: Cell) -> Cell:
    """The cell with the smaller (timestamp, origin, LSN): the first writer keeps the key; later removals have no
    effect.
    """
    return one if one.stamp <= other.stamp else other


_rules: dict[str, ConflictRule] = {
    DEFAULT_RULE: ConflictRule(last_writer_wins, forgets=True),
    "first-writer-wins": ConflictRule(first_writer_wins),
}


def register_rule(name: str, rule: ConflictRule | MergeFunction) -> None:
    """Register a rule under `name` in this process. Raises InvalidRequestError if the name is taken by another rule."""
    made = rule if isinstance(rule, ConflictRule) else ConflictRule(rule)
    known = _rules.setdefault(name, made)
    if known != made:
        raise InvalidRequestError(f"there is another conflict rule {name!r} already")


def rule_named(name: str) -> ConflictRule:
    """The rule that a table's setting `conflict` names; InvalidRequestError where there is none."""
    if name not in _rules:
        for found in entry_points(group=ENTRY_POINTS, name=name):
            register_rule(name, found.load())
    if name not in _rules:
        raise InvalidRequestError(
            f"there is no conflict rule {name!r} on this node: {', '.join(sorted(_rules))} are known, and packages add "
            f"theirs by the entry point group {ENTRY_POINTS!r}"
        )
    return _rules[name]


def check_rule(rule: ConflictRule | MergeFunction, samples: Iterable[Cell]) -> None:
    """Try the three laws on all pairs and triples of `samples`; raises InvalidRequestError with the first that fails.

    Takes samples cubed many calls: ten to thirty samples tell most mistakes.
    """
    merge = rule.merge if isinstance(rule, ConflictRule) else rule
    cells = list(samples)
    for one in cells:
        if merge(one, one) != one:
            raise InvalidRequestError(
                f"the rule is not idempotent: merging {one} with itself gives {merge(one, one)}"
            )
    for one, other in product(cells, repeat=2):
        if merge(one, other) != merge(other, one):
            raise InvalidRequestError(f"the rule is not commutative: the order of {one} and {other} matters")
    for one, other, third in product(cells, repeat=3):
        if merge(merge(one, other), third) != merge(one, merge(other, third)):
            raise InvalidRequestError(f"the rule is not associative: {one}, {other}, {third}")
