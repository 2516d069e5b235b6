"""Faults and workloads register themselves beside their code: nothing else names them, and the docs say what they do."""

from antiphon.simulation.cluster.faults import KINDS, kinds_in_order
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.tables import CHECKED, measured_in, table_of_mutants
from antiphon.simulation.cluster.workloads.registry import workloads_in_order


def test_numbers_have_no_gap_because_seeds_go_by_them() -> None:
    assert [kind.number for kind in kinds_in_order()] == list(range(1, len(KINDS) + 1))
    assert [one.number for one in workloads_in_order()] == list(range(1, len(workloads_in_order()) + 1))


def test_each_says_what_it_does() -> None:
    assert all(kind.effect.__doc__ for kind in KINDS.values())
    assert all(f"\n    {CHECKED}" in (one.cls.__doc__ or "") for one in workloads_in_order())


def test_each_has_an_option_that_is_drawn_where_it_says_so() -> None:
    worlds = [draw_options(seed) for seed in range(3_000)]
    for kind in KINDS.values():
        assert any(getattr(world, kind.option) for world in worlds) == (kind.drawn is not None), kind.name
    for one in workloads_in_order():
        values = {type(getattr(world, one.option)) for world in worlds}
        assert values == {one.type}, one.option
        assert any(getattr(world, one.option) for world in worlds), one.option


def test_what_was_measured_of_mutants_stays_when_their_table_is_made_anew() -> None:
    page = table_of_mutants({"h1-wrong-median": ("3", "`durable-majority`")})
    assert measured_in(page)["h1-wrong-median"] == ("3", "`durable-majority`")
    assert measured_in(page)["h2-over-counted-ack"] == ("not measured", "")
    assert table_of_mutants(measured_in(page)) == page
