"""The rules by which a shard that is split off copies: rows, changes, and any order of both."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.table.copying import CopiedRow, differences, left_behind, newer, records_of


def row(key: bytes, version_id: int, value: bytes | None = b"v") -> CopiedRow:
    return CopiedRow(key, VERSION.pack(version_id, 0, 0, 0), value, 5)


def test_differences_are_rows_that_are_newer_and_rows_that_are_gone() -> None:
    theirs = [row(b"a", 1), row(b"b", 7), row(b"c", 3), row(b"d", 4)]
    own = [row(b"a", 1), row(b"b", 2), row(b"c", 5), row(b"x", 6)]
    found = differences(theirs, own, 99)
    assert found == [row(b"b", 7), row(b"d", 4), CopiedRow(b"x", row(b"x", 6).version, None, 99)]
    assert differences(theirs, theirs, 99) == []


def test_what_was_left_behind_comes_from_either_side() -> None:
    """The parent had given versions up to 5: what it has not got of these is gone, and what is newer it never had."""
    theirs = [row(b"a", 1), row(b"b", 5), row(b"c", 3)]
    own = [row(b"b", 2), row(b"c", 7), row(b"x", 4), row(b"y", 6)]
    gone = CopiedRow(b"x", row(b"x", 4).version, None, 99)
    assert left_behind(theirs, own, 6, 99) == [row(b"a", 1), row(b"b", 5), gone]


def test_old_changes_do_not_count_and_newer_ones_do() -> None:
    known: dict[bytes, int | None] = {b"a": 5, b"b": None, b"c": 2, b"d": 9, b"e": None}
    changes = [
        row(b"a", 4),  # older than what is here
        row(b"a", 5),  # what is here
        row(b"b", 1),
        row(b"c", 2, None),
        row(b"d", 8, None),  # removed something older
        row(b"e", 3, None),  # is gone already
        row(b"b", 6),
    ]
    assert newer(changes, known) == [row(b"b", 1), row(b"c", 2, None), row(b"b", 6)]
    assert known == {b"a": 5, b"b": 6, b"c": None, b"d": 9, b"e": None}


def test_records_carry_the_versions() -> None:
    assert records_of([row(b"a", 3), row(b"b", 4, None)]) == [
        (b"a", b"v", [(VERSION_HEADER, row(b"a", 3).version)], 5),
        (b"b", None, [(VERSION_HEADER, row(b"b", 4).version)], 5),
    ]


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.booleans()), max_size=30),
    st.data(),
)
def test_a_comparison_at_any_moment_and_all_changes_since_make_the_same_rows(
    wanted: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    log: list[CopiedRow] = []
    states: list[dict[bytes, CopiedRow]] = [{}]
    for number, (key, remove) in enumerate(wanted):
        rows = dict(states[-1])
        if remove and key in rows:
            log.append(row(key, rows.pop(key).version_id, None))
        else:
            rows[key] = row(key, number)
            log.append(rows[key])
        states.append(rows)
    began = data.draw(st.integers(0, len(log)))
    mine = dict(states[data.draw(st.integers(0, len(log)))])  # an earlier leader's copy, behind or ahead
    for key in (b"a", b"b", b"c"):  # a page each, of moments of their own
        theirs = states[data.draw(st.integers(began, len(log)))]
        page = [rows[key] for rows in (theirs,) if key in rows]
        apply(mine, differences(page, [mine[key]] if key in mine else [], 0))
    for change in log[began:]:
        known = {change.key: mine[change.key].version_id if change.key in mine else None}
        apply(mine, newer([change], known))
    assert mine == states[-1]


def apply(rows: dict[bytes, CopiedRow], changes: list[CopiedRow]) -> None:
    for change in changes:
        if change.value is None:
            del rows[change.key]
        else:
            rows[change.key] = change
