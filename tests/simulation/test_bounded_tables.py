"""Worlds in which the logs of tables have a bound: what is above it goes once the store has it on disk."""

import pytest

from antiphon.simulation.cluster.retention_mutants import BOUNDED_TABLES
from tests.simulation.told import sound_until


def test_rows_are_kept_where_the_log_is_cut_behind_the_store() -> None:
    assert sound_until(("bounded",), "oxia", 1, **BOUNDED_TABLES)["ok"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["raft", "fluvio", "multi"])
def test_so_are_they_however_the_table_is_replicated(profile: str) -> None:
    sound_until(("bounded",), profile, 1, **BOUNDED_TABLES)


@pytest.mark.slow
def test_a_past_that_is_gone_is_refused_and_one_that_is_there_is_right() -> None:
    sound_until(("bounded", "past-read", "past-lost"), "oxia", 1, **{**BOUNDED_TABLES, "past_readers": 2})
