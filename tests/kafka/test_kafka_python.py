"""kafka-python 3, unchanged, against the listener: the client with the newest versions on the wire."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.kafka.groups.types import GroupConfig
from antiphon.model.metadata import Kind
from tests.kafka.served import Served, serve

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # It joins before it knows its topics, and loses its way when it has to join a second time at once.
    groups = GroupConfig(initial_delay_ms=500)
    with serve(tmp_path_factory.mktemp("node"), groups=groups) as running:
        for topic, shards in (
            ("codec-None", 1),
            ("codec-gzip", 1),
            ("timed", 1),
            ("static", 2),
            ("sessions", 48),
        ):
            running.create(topic, shards)
        running.create("atable", kind=Kind.TABLE)
        yield running


def run(served: Served, scenario: str) -> None:
    ended = subprocess.run(
        (sys.executable, "-m", "tests.kafka.kafka_python_scenarios", scenario, served.address),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("scenario", ["plain", "gzip"])
def test_idempotent_produce_and_group_consume(served: Served, scenario: str) -> None:
    run(served, scenario)


def test_offsets_for_times_and_ends(served: Served) -> None:
    run(served, "offsets")


def test_a_fetch_session_tells_each_record_once(served: Served) -> None:
    run(served, "sessions")


def test_topics_quorum_and_moves_are_described(served: Served) -> None:
    run(served, "described")


def test_a_static_member_takes_its_own_place(served: Served) -> None:
    run(served, "static")
    group = served.do(lambda: served.listener._coordinator.find("static"))
    assert group is not None
    assert len(group.members) == 1


def test_a_table_can_be_read_but_not_written(served: Served) -> None:
    run(served, "table")


def test_administration(served: Served) -> None:
    run(served, "administration")


def test_quotas_are_set_told_removed_and_felt(served: Served) -> None:
    run(served, "quotas")
