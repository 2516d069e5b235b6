"""`antiphon judge script`: public cluster scripts, carried out on our replicas."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from antiphon.cli import judge
from antiphon.errors import InvalidRequestError
from antiphon.simulation.plants import PLANTS, planted
from antiphon.simulation.public_scripts import judge_script
from tests.judged_cases import JUDGED_CASES, needs_judged_cases

app = typer.Typer()
judge.mount(app)

SCRIPTS = JUDGED_CASES / "etcd-raft" / "scripts"
COMPARED = {"checkquorum": 1, "lagging_commit": 2, "probe_and_replicate": 8}

# Ours: three nodes, one proposal of which node 3 hears nothing, then its log and what the leader knows.
SMALL = """# three nodes
add-nodes 3 voters=(1,2,3) index=4
----
ok

campaign 1
----
ok

stabilize
----
ok

propose 1 ode
----
ok

stabilize 1 2
----
ok

deliver-msgs drop=(3)
----
ok

raft-log 3
----
1/5 EntryNormal ""

status 1
----
1: StateReplicate match=6 next=7
2: StateReplicate match=6 next=7
3: StateReplicate match=5 next=7 inflight=1

raft-state
----
1: StateLeader (Voter) Term:1 Lead:1
2: StateFollower (Voter) Term:1 Lead:1
3: StateFollower (Voter) Term:1 Lead:1
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["judge", "script", *arguments])


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.txt"
    path.write_text(text)
    return path


@needs_judged_cases
@pytest.mark.parametrize("name", COMPARED)
def test_every_public_script(name: str) -> None:
    judgement = judge_script(SCRIPTS / f"{name}.txt")
    assert judgement.wrong == []
    assert judgement.compared == COMPARED[name]


@needs_judged_cases
def test_without_the_liberties_what_they_are_for_fails_and_nothing_else() -> None:
    wrong = {
        name: [one.command for one in judge_script(SCRIPTS / f"{name}.txt", as_is=True).wrong]
        for name in COMPARED
    }
    assert wrong == {
        "checkquorum": ["stabilize (the final logs)"],
        "lagging_commit": [],
        "probe_and_replicate": ["raft-log 5", "raft-log 7"],
    }


@needs_judged_cases
@pytest.mark.parametrize("plant", ["no-prev-check", "h2-over-counted-ack", "h5-unclipped-commit"])
def test_a_planted_bug_makes_figure_7_fail(plant: str) -> None:
    with planted(PLANTS[plant]):
        judgement = judge_script(SCRIPTS / "probe_and_replicate.txt")
    assert judgement.wrong
    assert judgement.compared == COMPARED["probe_and_replicate"]


@needs_judged_cases
def test_after_a_broken_promise_no_stanza_passes() -> None:
    with planted(PLANTS["ack-before-sync"]):
        judgement = judge_script(SCRIPTS / "lagging_commit.txt")
    assert (judgement.passed, judgement.compared) == (0, 2)
    assert "broke within-log" in judgement.wrong[0].found[0]


def test_logs_progress_and_states_are_compared(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    result = call(str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path} 3/3 stanzas\n"


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ('1/5 EntryNormal ""', '1/5 EntryNormal "ode"', 26),
        ("match=5 next=7 inflight=1", "match=5 next=7", 30),
        ("2: StateFollower (Voter) Term:1", "2: StateFollower (Voter) Term:2", 36),
    ],
)
def test_a_stanza_that_differs_is_shown_and_exits_one(
    tmp_path: Path, right: str, wrong: str, line: int
) -> None:
    path = written(tmp_path, SMALL.replace(right, wrong))
    result = call(str(path))
    assert result.exit_code == 1
    assert result.stdout == f"{path} 2/3 stanzas\n"
    assert f"  line {line}: " in result.stderr
    assert f"-{wrong}" in result.stderr or wrong in result.stderr


def test_the_final_logs_are_those_that_the_outputs_speak_of(tmp_path: Path) -> None:
    ending = """
stabilize
----
> 3 handling Ready
  Ready MustSync=true:
  Entries:
  1/6 EntryNormal "ode"
"""
    # Node 3 has to learn of the entry: a tick lets the leader tell it what it lost.
    wakes = "\ntick-election 1\n----\nok\n"
    judgement = judge_script(written(tmp_path, SMALL + wakes + ending))
    assert (judgement.compared, judgement.wrong) == (4, [])
    judgement = judge_script(written(tmp_path, SMALL + wakes + ending.replace("ode", "odes")))
    assert [(one.line, one.command) for one in judgement.wrong] == [(46, "stabilize (the final logs)")]
    assert '3: 1/6 EntryNormal "odes"' in judgement.wrong[0].expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("an ode to joy\n", "has no stanzas"),
        ("stabilize\n----\nok\n", "line 1: stabilize: a script begins with add-nodes"),
        ("add-nodes 3 voters=(1,2)\n----\nok\n", "line 1: .*only one add-nodes"),
        ("add-nodes 2 voters=(1,2) learners=(3)\n----\nok\n", "line 1: .*only one add-nodes"),
        (SMALL + "\ntransfer-leadership from=1 to=2\n----\nok\n", "no command 'transfer-leadership'"),
        (SMALL + "\nraft-log 9\n----\nok\n", "raft-log 9"),
        (SMALL + "\npropose 1\n----\nok\n", "propose 1"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        judge_script(written(tmp_path, text))


def test_an_absent_file_is_refused_in_one_line(tmp_path: Path) -> None:
    result = call(str(tmp_path / "absent.txt"))
    assert result.exit_code == 1
    assert "cannot read" in result.stderr
