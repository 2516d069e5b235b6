"""`antiphon judge script`: public cluster scripts, carried out on our replicas."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.cli.main import app
from antiphon.errors import InvalidRequestError
from antiphon.replication.members import Members
from antiphon.replication.replica_state import LogCondition
from antiphon.simulation import public_script_replica as taken
from antiphon.simulation.cluster.mutants import OF_SCRIPTS, mutated
from antiphon.simulation.public_script_language import change_text, changed, changes_between, read_stanzas
from antiphon.simulation.public_script_run import ScriptRun
from antiphon.simulation.public_scripts import judge_script
from tests.judged_cases import JUDGED_CASES, needs_judged_cases
from tests.simulation import raft_scripts

SCRIPTS = JUDGED_CASES / "etcd-raft" / "scripts"
COMPARED = {"checkquorum": 1, "lagging_commit": 2, "probe_and_replicate": 8}

OWN = Path(__file__).parent / "public_scripts"
# Scripts of our own: compared stanzas, the liberties that each needs, and how many stanzas pass without them.
OWN_SCRIPTS: dict[str, tuple[int, set[str], int]] = {
    "compacted_log": (6, set(), 6),
    "doubted_leader": (8, set(), 8),
    "empty_disk": (3, set(), 3),
    "full_window": (5, set(), 5),
    "handed_over": (5, set(), 5),
    "joint_step_needs_both": (5, set(), 5),
    "kept_joint_step": (4, {taken.KEPT_JOINT, taken.EMPTY_ENTRY}, 1),
    "kinds_of_messages": (4, set(), 4),
    "learner_does_not_count": (3, {taken.EARLY_HEARTBEAT, taken.EMPTY_ENTRY}, 2),
    "pre_vote_alone": (3, {taken.GRANTED_PRE_VOTE}, 2),
    "promoted_learner": (5, set(), 5),
    "quiet": (1, set(), 1),
    "restored": (2, set(), 2),
    "removed_leader": (4, set(), 4),
    "slow_disks": (8, {taken.EARLY_VOTE_SYNC}, 8),
    "unreachable_follower": (4, set(), 4),
    "voter_from_nowhere": (8, {taken.ONE_STEP, taken.NEW_VOTER, taken.EARLY_HEARTBEAT}, 1),
}

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


def test_the_page_tells_of_every_script_and_counts_those_that_pass() -> None:
    rows, total = raft_scripts.page_says()
    assert (sum(map(raft_scripts.is_whole, rows.values())), len(rows)) == total
    assert total == (20, 28)


@needs_judged_cases
@pytest.mark.parametrize("name", COMPARED)
def test_a_script_comes_out_as_the_page_says(name: str) -> None:
    assert raft_scripts.figures_of(SCRIPTS / f"{name}.txt") == raft_scripts.page_says()[0][name]


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
@pytest.mark.parametrize("mutant", ["no-prev-check", "h2-over-counted-ack", "h5-unclipped-commit"])
def test_a_mutant_makes_figure_7_fail(mutant: str) -> None:
    with mutated(OF_SCRIPTS[mutant]):
        judgement = judge_script(SCRIPTS / "probe_and_replicate.txt")
    assert judgement.wrong
    assert judgement.compared == COMPARED["probe_and_replicate"]


@needs_judged_cases
def test_after_a_broken_promise_no_stanza_passes() -> None:
    with mutated(OF_SCRIPTS["ack-before-sync"]):
        judgement = judge_script(SCRIPTS / "lagging_commit.txt")
    assert (judgement.passed, judgement.compared) == (0, 2)
    assert "broke within-log" in judgement.wrong[0].found[0]


def test_every_script_of_our_own_is_known() -> None:
    assert sorted(OWN_SCRIPTS) == sorted(path.stem for path in OWN.glob("*.txt"))


@pytest.mark.parametrize("name", OWN_SCRIPTS)
def test_scripts_of_our_own(name: str) -> None:
    compared, liberties, passed_as_is = OWN_SCRIPTS[name]
    judgement = judge_script(OWN / f"{name}.txt")
    assert judgement.wrong == []
    assert (judgement.compared, set(judgement.liberties)) == (compared, liberties)
    judgement = judge_script(OWN / f"{name}.txt", as_is=True)
    assert (judgement.compared, judgement.passed, judgement.liberties) == (compared, passed_as_is, {})


@pytest.mark.parametrize(
    ("mutant", "name", "as_is"),
    [
        ("h1-wrong-median", "removed_leader", False),
        ("vote-before-sync", "doubted_leader", False),
        ("vote-for-anyone", "pre_vote_alone", False),
        ("lost-heartbeat-watermark", "kept_joint_step", False),
        ("joint-new-majority-only", "joint_step_needs_both", False),
        ("one-step-change", "promoted_learner", True),
        ("learners-count", "learner_does_not_count", False),
        ("two-changes-at-once", "learner_does_not_count", True),
        ("hasty-transfer", "handed_over", False),
        ("ack-before-sync", "slow_disks", False),
    ],
)
def test_a_mutant_makes_a_script_of_our_own_fail(mutant: str, name: str, as_is: bool) -> None:
    right = judge_script(OWN / f"{name}.txt", as_is=as_is)
    with mutated(OF_SCRIPTS[mutant]):
        judgement = judge_script(OWN / f"{name}.txt", as_is=as_is)
    assert judgement.wrong != right.wrong


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
        ("add-nodes 3\n----\nok\n", "line 1: .*the first add-nodes says who votes"),
        ("add-nodes 32 voters=(1)\n----\nok\n", "line 1: .*1 to 31 nodes"),
        ("add-nodes 2 voters=(1,2) weather=fair\n----\nok\n", "line 1: .*not weather"),
        (SMALL + "\nadd-nodes 1 voters=(1,4)\n----\nok\n", "later nodes know the members of the first"),
        (SMALL + "\nadd-nodes 29\n----\nok\n", "1 to 31 nodes"),
        (SMALL + "\nsing 1\n----\nok\n", "no command 'sing'"),
        (SMALL + "\nraft-log 9\n----\nok\n", "line 42: raft-log 9: no node 9; there are 1, 2, 3"),
        (SMALL + "\nstatus\n----\nok\n", "status NODE"),
        (SMALL + "\npropose 1\n----\nok\n", "propose 1"),
        (SMALL + "\ndeliver-msgs 1 type=MsgHum\n----\nok\n", "no type 'MsgHum'"),
        (SMALL + "\npropose-conf-change 1 transition=slow\nl3\n----\nok\n", "no transition 'slow'"),
        (SMALL + "\npropose-conf-change 1\nx3\n----\nok\n", "line 42: .*no change of members 'x3'"),
        (SMALL + "\npropose-conf-change 1\nr1 r2 r3\n----\nok\n", "would leave no voter"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        judge_script(written(tmp_path, text))


def test_an_absent_file_is_refused_in_one_line(tmp_path: Path) -> None:
    result = call(str(tmp_path / "absent.txt"))
    assert result.exit_code == 1
    assert "cannot read" in result.stderr


def test_a_command_takes_the_lines_of_input_before_the_separator(tmp_path: Path) -> None:
    text = "# a change\npropose-conf-change 1 v1=true\nv4\nl5\n----\nok\n\nraft-log 2\n----\n1/5 EntryConfChangeV2 v4 l5\n"
    change, log = read_stanzas(written(tmp_path, text))
    assert (change.line, change.name, change.nodes, change.options) == (
        2,
        "propose-conf-change",
        [1],
        {"v1": "true"},
    )
    assert change.given == ["v4", "l5"]
    assert log.expected == ["1/5 EntryConfChange l5 v4"]  # one encoding, one order


def test_a_node_that_began_empty_is_told_so_until_it_has_caught_up() -> None:
    run, joining = ScriptRun(as_is=True), []
    for stanza in read_stanzas(OWN / "empty_disk.txt"):
        run.carry_out(stanza)
        joining.append(3 in run.actors and run.actors[3].files.condition is LogCondition.JOINING)
    assert joining == [False] + [True] * 6 + [False] * 4


@pytest.mark.parametrize("end", ["Index:30 Term:1", "Index:31 Term:2", "Index:32 Term:1"])
def test_a_log_ends_where_the_snapshot_that_is_told_leaves_it(tmp_path: Path, end: str) -> None:
    text = (OWN / "restored.txt").read_text().replace("Snapshot Index:31 Term:1", f"Snapshot {end}")
    judgement = judge_script(written(tmp_path, text))
    assert [(one.command, one.found) for one in judgement.wrong] == [
        ("stabilize (the final logs)", ["2: ends at 1/31", '3: 1/31 EntryNormal ""'])
    ]


def test_what_is_not_known_to_be_committed_is_not_compacted(tmp_path: Path) -> None:
    text = (
        SMALL + "\npropose 1 hymn\n----\nok\n\nprocess-ready 1\n----\nok\n\ncompact 1 7\n----\nlog is empty\n"
    )
    judgement = judge_script(written(tmp_path, text))
    assert [one.found for one in judgement.wrong] == [
        ["node 1 keeps its log: it knows only 6 to be committed and durable"]
    ]


def test_changes_of_members_as_words() -> None:
    before = Members((1, 2), (), (3,))
    after = changed(before, ["v3", "r1", "l4", "u2"])
    assert after == Members((2, 3), (), (4,))
    assert change_text(changes_between(before, after)) == "EntryConfChange l4 r1 v3"
    joint = Members((2, 3), (1, 2), (4,))
    assert changes_between(before, joint) == changes_between(before, after)
    assert changes_between(joint, after) == []
    assert changes_between(after, changed(after, ["l3", "r4"])) == ["l3", "r4"]
