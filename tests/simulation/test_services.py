"""Registries of services in simulated clusters: what lists and followers are told, and what the judge sees."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from antiphon.simulation.cluster.mutant_worlds import CUTS, MOVES
from antiphon.simulation.cluster.workloads.services import Registration, ServicesWorkload
from antiphon.simulation.violation import ViolationError
from tests.simulation.told import sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "service_clients": 4}
REACHED = ("registered", "instances-seen", "service-changes")


@pytest.mark.parametrize(
    ("profile", "seed", "world"),
    [
        ("raft", 9_463_101, CUTS),
        pytest.param("tarantool", 9_463_102, {**MOVES, "commands": "split"}, marks=pytest.mark.slow),
    ],
)
def test_registries_are_right_while_leaders_change_and_shards_are_split(
    profile: str, seed: int, world: dict[str, Any]
) -> None:
    sound_until(REACHED, profile, seed, **{**world, **WORK})


def judge(*registered: Registration) -> ServicesWorkload:
    """At 10 s of the world's time."""
    workload = ServicesWorkload.__new__(ServicesWorkload)
    workload.cluster = cast("Any", SimpleNamespace(loop=SimpleNamespace(now=10.0), tell=lambda *_: None))
    workload.shard_ids, workload.fastest = [3], 1.0
    workload._registered = {one.address: one for one in registered}
    workload.outcomes = {"service-changes": 0}
    return workload


def registered(key: str, address: bytes, until_s: float = 11.0, **how: Any) -> Registration:
    life = cast("Any", SimpleNamespace(kept_until_s=lambda _fastest: until_s))
    return Registration(key, address, life, acknowledged=True, **how)


def test_a_list_has_each_instance_whose_session_is_kept() -> None:
    one, late = registered("web/a", b"1"), registered("web/b", b"2", 9.0)
    workload = judge(one, late)
    workload._judge("web", {"a": b"1"}, [one, late], 9.5)
    workload._judge("web", {"a": b"1", "b": b"2"}, [one, late], 9.5)  # it may go, and has not
    for found in ({}, {"a": b"2"}):
        with pytest.raises(ViolationError, match="service-listed"):
            workload._judge("web", found, [one, late], 9.5)
    workload._judge("mail", {}, [one, late], 9.5)


def test_a_list_has_nothing_that_had_ended_and_nothing_that_nobody_registered() -> None:
    one = registered("web/a", b"1", is_over=True, ended_s=9.0)
    workload = judge(one)
    workload._judge("web", {"a": b"1"}, [one], 8.9)  # it ended while the list was made
    for found, began_s in (({"a": b"1"}, 9.1), ({"a": b"9"}, 8.9), ({"b": b"1"}, 8.9)):
        with pytest.raises(ViolationError, match="service-gone"):
            workload._judge("web", found, [one], began_s)


def change(key: bytes, value: bytes | None, version: int) -> Any:
    return SimpleNamespace(key=key, value=value, version=SimpleNamespace(id=version))


def test_who_follows_hears_of_each_change_once_in_order() -> None:
    workload, view, gone, base = judge(), {b"a": 4}, dict[bytes, int](), {b"a": 4}

    def comes(*what: Any) -> None:
        workload._changed(change(*what), view, gone, base)

    comes(b"a", b"old", 3)  # from before what was looked at
    comes(b"a", None, 3)
    assert view == {b"a": 4}
    comes(b"a", b"new", 6)
    comes(b"a", None, 6)
    comes(b"b", b"x", 7)
    assert (view, gone) == ({b"b": 7}, {b"a": 6})
    for again in ((b"a", None, 6), (b"b", b"x", 7), (b"b", None, 5), (b"a", b"z", 5)):
        with pytest.raises(ViolationError, match="service-changes"):
            comes(*again)
