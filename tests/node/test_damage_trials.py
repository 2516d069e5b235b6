"""Some of the trials of damage, of each kind of file; `make damage` runs all of them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.node.damage_kinds import HARMS, KINDS, OF_POSITIONS, neighbour
from tests.node.damage_outcomes import RUNNING, Trial
from tests.node.damage_trials import merged, run_trials

FORMATS: Final = Path(__file__).parents[2] / "docs" / "formats.md"
UNTRIED: Final = {
    "node.out", "node.out.1", "node.log", "node.log.1",  # tests/node/damage_settings.py has the log
    "shards/<shard id>/", "tables/<shard id>/", "tables/<shard id>.new/", "snapshots/send-<shard id>-<node>/",
    "*.tmp",  # removed unread
}  # fmt: skip


def some(trials: list[Trial]) -> list[Trial]:
    """One file of each kind, damaged in one way, after a stop: other ways for other kinds. Some of a running node too."""
    chosen = []
    for number, (kind, _) in enumerate(KINDS):
        harm = HARMS[number % len(HARMS)]
        chosen += [one for one in trials if (one.kind, one.harm, one.before) == (kind, harm, "stopped")][:1]
        if number % 4 == 0:
            chosen += [one for one in trials if (one.kind, one.harm, one.before) == (kind, harm, RUNNING)][:1]
    for harm in OF_POSITIONS:
        chosen += [one for one in trials if (one.kind, one.harm, one.before) == ("segment", harm, "stopped")][
            :1
        ]
    return chosen + [one for one in trials if (one.kind, one.harm) == ("identity.json", "swap")][:1]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_damaged_file_keeps_nobody_from_serving_and_loses_nothing() -> None:
    outcomes = run_trials(some)
    assert len(outcomes) > 20
    assert not [one for one in outcomes if not one.is_good]
    assert {"refused", "mended", "as before"} <= {one.word for one in outcomes}


def _described() -> Iterator[str]:
    """Paths of the files that docs/formats.md has in the directories of a node and of a replica."""
    text = FORMATS.read_text()
    for title, folder in (("A node's directory", "/data/"), ("A replica's directory", "/data/shards/1/")):
        table = text.partition(f"## {title}\n")[2].partition("|---|---|\n")[2].partition("\n\n")[0]
        for line in table.splitlines():
            for name in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                if name in UNTRIED:
                    continue
                whole = f"<offset>{name}" if name.startswith(".") else name
                path = (folder + whole).replace("<shard id>/", "1/x").replace("<shard id>", "1")
                yield re.sub(r"<(first )?offset>", f"{0:020d}", path)


def test_each_file_that_the_formats_describe_is_damaged_somewhere() -> None:
    found = list(_described())
    assert len(found) > 25
    patterns = [pattern for _, pattern in KINDS]
    assert not [one for one in found if not any(re.fullmatch(pattern, one) for pattern in patterns)]


def test_rows_of_some_kinds_take_the_places_of_their_old_ones() -> None:
    old = "| file | flip |\n|---|---|\n| lock | refused |\n| scrub | told |\n\n2 trials."
    trials = [
        Trial(kind, "/data/x", "flip", before, served=True, mended=True)
        for kind, before in (("lock", "killed"), ("audit", "stopped"), ("scrub", RUNNING))
    ]
    told = merged(old, trials).split("\n")
    others = " | -" * (len(HARMS) - 1)
    assert told == [
        "| file | " + " | ".join(HARMS) + " |",
        "|---" * (len(HARMS) + 1) + "|",
        f"| lock | as before{others} |",
        f"| scrub | told{others} |",
        f"| audit | as before{others} |",
        "",
        "2 trials.",
    ]


def test_only_what_was_tried_is_written_anew() -> None:
    old = "| file | flip | swap |\n|---|---|---|\n| index | mended | told |"
    tried = Trial("index", "/data/x", "reorder", "stopped", served=True, mended=True)
    told = dict(zip(HARMS, merged(old, [tried]).split("\n")[2].strip("| ").split(" | ")[1:], strict=True))
    assert told == dict.fromkeys(HARMS, "-") | {"flip": "mended", "swap": "told", "reorder": "as before"}


def test_a_neighbour_is_a_file_of_the_same_kind_in_the_same_folder() -> None:
    paths = [f"/data/shards/{shard}/{n:020d}.log" for shard in (1, 2) for n in (0, 5)]
    assert neighbour("segment", paths[0], paths) == paths[1]
    assert neighbour("segment", paths[1], paths) == paths[0]
    assert not neighbour("segment", paths[0], [paths[0], paths[2], "/data/shards/1/hard-state"])
