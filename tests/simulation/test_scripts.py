"""`antiphon simulate --script`: scenarios in words, carried out on the real replicas."""

import json
import re
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from antiphon.cli.simulate import simulate
from antiphon.errors import InvalidRequestError
from antiphon.simulation.cluster.mutants import OF_SCRIPTS, mutated
from antiphon.simulation.script import run_script
from antiphon.simulation.script_language import COMMANDS, PROPERTIES, read_script
from tests.cli.shell import Terminal

SCENARIOS = Path(__file__).parent.parent.parent / "scenarios"

app = typer.Typer()
app.command()(simulate)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "play.txt"
    path.write_text(text)
    return path


def run(tmp_path: Path, text: str) -> str:
    """The failure of a script, empty if there is none."""
    outcome = run_script(script(tmp_path, text))
    return f"{outcome.line}: {outcome.failure}" if outcome.line else ""


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    result = call("--script", str(path))
    assert result.exit_code == 0, result.stdout[-500:]
    assert result.stdout.endswith("every expectation met, every promise kept\n")


def test_a_scenario_step_by_step_shows_the_cluster_after_each() -> None:
    shown = call("--script", str(SCENARIOS / "figure-8.txt"), "--step").stdout
    assert shown.startswith("# Figure 8 of the Raft paper")
    at = shown.index("  13  deliver to s2\n")
    assert shown[at:].splitlines()[1:8] == [
        "        s1  leader     term 2   1:1.0 | 2:start  (voted for s1)",
        "        s2  follower   term 2   1:1.0 | 2:start  (voted for s1)",
        "        s3  fenced     term 2   1:1.0 |  (voted for s1)",
        "        s4  fenced     term 2   1:1.0 |  (voted for s1)",
        "        s5  fenced     term 2   1:1.0 |  (voted for s1)",
        "        s1 -> s3 s4 s5: Append, term 2, 2:start after offset 1, committed up to 1",
        "        s2 -> s1: Ack, term 2",
    ]
    assert "s1  down       term 2   1:1.0 | 2:start\n" in shown, "what its disk has"
    assert "  14  expect s1 s2 disk 1 2\n  15  drop\n" in shown, "nothing changes, nothing is drawn"


def test_what_is_not_durable_yet_stands_in_brackets(tmp_path: Path) -> None:
    shown = call(
        "--script",
        str(script(tmp_path, "replicas a b\nelect a\nhold b\nappend a x\ndeliver\nexpect a end 2\n")),
        "--step",
    ).stdout
    assert "b  follower   term 1   1:start | (1:x)  (voted for a)" in shown
    assert "a  leader     term 1   1:start | 1:x  (voted for a)" in shown


def test_steps_go_at_the_readers_speed() -> None:
    with Terminal(
        "simulate", "--script", str(SCENARIOS / "figure-8.txt"), "--step", environment={}
    ) as terminal:
        assert "10  deliver" not in terminal.until_written("Enter: next step")
        terminal.type("\r")
        terminal.until_written("  10  deliver to s2 s3 s4 s5")
        terminal.type("q")
        assert terminal.ended() == 0
        assert "  11  " not in terminal.written
    with Terminal(
        "simulate", "--script", str(SCENARIOS / "figure-8.txt"), "--step", environment={}
    ) as terminal:
        terminal.until_written("Enter: next step")
        terminal.type("c")
        assert terminal.ended() == 0
        assert "every expectation met" in terminal.written


def test_steps_are_those_of_a_scenario() -> None:
    assert "add --script" in call("--seed", "1", "--step").output


def test_the_scenarios_of_the_documents_are_there() -> None:
    assert {path.stem for path in SCENARIOS.glob("*.txt")} >= {
        "five-cities",  # S1.37
        "figure-7",
        "figure-8",
        "figure-8-e",
        "missing-a-piece",  # S4.13 A
        "longer-and-newer",  # S4.13 B
        "longer-and-newer-appointed",
        "even-ensemble",  # H1
        "empty-log",  # H3
    }


@pytest.mark.parametrize(
    ("name", "mutant", "found"),
    [
        ("even-ensemble", "h1-wrong-median", "line 7: broke durable-majority"),
        ("longer-and-newer", "h2-over-counted-ack", "broke ack-agrees"),
        (
            "figure-8",
            "h4-older-term-by-counting",
            "line 43: broke older-term: node 1 (term 4) commits up to 2",
        ),
        ("five-cities", "h4-older-term-by-counting", "line 39: broke older-term"),
        ("longer-and-newer", "h5-unclipped-commit", "broke committed-immutable"),
        ("figure-7", "no-prev-check", "broke log-matching"),
        ("five-cities", "vote-for-anyone", "expected that athens refuses byzantium"),
        ("five-cities", "ready-at-once", "expected athens ready no, found yes"),
    ],
)
def test_a_scenario_fails_when_its_hazard_is_put_back(name: str, mutant: str, found: str) -> None:
    result = call("--script", str(SCENARIOS / f"{name}.txt"), "--mutant", mutant)
    assert result.exit_code == 1
    assert found in result.stdout.splitlines()[-1]


LEADS = "replicas a b c\nelect a\nappend a one two\nsettle\n"


def test_each_step_is_a_line_with_what_it_caused(tmp_path: Path) -> None:
    lines: list[str] = []
    run_script(script(tmp_path, LEADS + "expect all commit 3  # all of it\n"), lines.append)
    assert lines[0] == "   1  replicas a b c"
    assert lines[1].startswith("   2  elect a\n      - a leads term 1\n      - a commits up to 1")
    assert lines[-1] == "   5  expect all commit 3"


@pytest.mark.parametrize(
    ("expectation", "found"),
    [
        ("b commit 4", "expected b commit 4, found 3"),
        ("all term 2", "expected a term 2, found 1"),
        ("c end 0", "expected c end 0, found 3"),
        ("a b role leader", "expected b role leader, found follower"),
        ("b ready yes", "expected b ready yes, found no"),
        ("b leader none", "expected b leader none, found a"),
        ("b vote c", "expected b vote c, found a"),
        ("a log 1 1:one", "expected a log 1 1:one, found: 1:start 1:one 1:two"),
        ("a log 1 1:one 1:three", "expected a log 1 1:one 1:three, found: 1:start 1:one 1:two"),
        ("a log 1 1 2", "expected a log 1 1 2, found: 1:start 1:one 1:two"),
        ("a disk empty", "expected a disk empty, found: 1:start 1:one 1:two"),
        ("copies one 2", "expected one on 2 disks, found it on 3: a, b, c"),
        ("copies three 1", "expected three on 1 disks, found it on 0: -"),
        ("b grants a", "expected that b grants a, but b last said Ack("),
        ("b grants c", "expected that b grants c, but b said nothing"),
    ],
)
def test_a_wrong_expectation_fails_with_line_and_finding(
    tmp_path: Path, expectation: str, found: str
) -> None:
    path = script(tmp_path, f"{LEADS}\nexpect {expectation}\nexpect a term 1\n")
    result = call("--script", str(path))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith(f"{path}: line 6: {found}")
    assert "expect a term 1" not in result.stdout, "the first failure ends the run"


def test_a_right_expectation_holds(tmp_path: Path) -> None:
    for right in (
        "a log 1:start 1:one 1:two",
        "b c log like a",
        "b acknowledges a",
        "a b vote a",
        "c leader a",
        "copies two 3",
    ):
        assert run(tmp_path, f"{LEADS}expect {right}\n") == ""


def test_logs_that_differ_are_shown(tmp_path: Path) -> None:
    failure = run(tmp_path, "replicas a b\nlog a 1:x\nlog b 1:x 2:y\nexpect a log like b\n")
    assert failure == "4: expected a log like b: 1:x 2:y, found: 1:x"


@pytest.mark.parametrize(
    ("step", "found"),
    [
        ("append b more", "node 2 is follower of shard 1, not its leader"),
        ("refuse a more", "a took it, at the end 4"),
        ("restart a", "a is up"),
        ("campaign a", "a does not campaign; it is leader in term 1"),
        ("crash b\ncrash b", "b is down"),
        ("crash b\nexpect b term 1", "b is down"),
        ("cut b\nelect b", "b is follower in term 1, and serves nobody"),
    ],
)
def test_a_step_that_cannot_be_done_ends_the_run(tmp_path: Path, step: str, found: str) -> None:
    assert found in run(tmp_path, f"{LEADS}{step}\nexpect a term 1\n")


def test_what_was_not_synced_is_lost_in_a_crash(tmp_path: Path) -> None:
    play = "hold b c\nappend a three\ndeliver\nexpect a end 4\nexpect a commit 3\nexpect b log like a\n"
    after = "crash b\nrestart b\nexpect b log 1 1 1\nsync c\nsettle\nexpect a c commit 4\n"
    assert run(tmp_path, LEADS + play + after) == ""


def test_messages_can_be_repeated_lost_and_kept_from_one_direction(tmp_path: Path) -> None:
    play = """
    cut a -> b
    append a three
    repeat to c
    deliver
    expect c log like a
    expect b end 3
    expect a commit 4
    heal
    append a four
    drop from a to b c
    expect copies four 1
    settle
    expect copies four 3
    """
    assert run(tmp_path, LEADS + play) == ""


def test_a_coordinator_appoints_and_only_who_promised(tmp_path: Path) -> None:
    scene = "appointed a b c\nfence a b\n"
    assert "4: c has not promised" in run(tmp_path, scene + "\nappoint c\nexpect a term 1\n")
    assert "refuses to lead term 1" in run(tmp_path, "appointed a b c\nfence a\nappoint a\nexpect a term 1\n")
    assert (
        run(tmp_path, scene + "appoint a\ndeliver\nexpect a ready yes\nadd c\nsettle\nexpect c leader a\n")
        == ""
    )
    assert run(tmp_path, "appointed a b c\nelect b\nappend b x\nsettle\nexpect all commit 2\n") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas a b c\nelekt a\n", "line 2: 'elekt': no such command; did you mean elect?"),
        ("replicas a b c\n\n# hm\nelect d\n", "line 4: 'd': no such node; there are a, b, c"),
        ("replicas a b c\nelect\n", "line 2: 'elect': node is missing at the end"),
        ("replicas a b c\nelect a b\n", "line 2: 'b': one word too many"),
        ("replicas a b c\ncrash\n", "line 2: 'crash': a node is missing at the end"),
        ("replicas a b c\nexpect a comit 1\n", "line 2: 'comit': no such property; did you mean commit?"),
        ("replicas a b c\nexpect a commit one\n", "line 2: 'one': commit must be a number"),
        ("replicas a b c\nexpect a role king\n", "line 2: 'king': no such role"),
        ("replicas a b c\nexpect a log 0:x\n", "line 2: '0:x': an entry is TERM or TERM:CONTENT"),
        ("replicas a b c\nexpect a log\n", "line 2: 'expect a log': entries"),
        ("replicas a b c\nlog a 2 1\n", "line 2: '1': terms never fall within a log, and 2"),
        ("replicas a b c\nlog a 1 | 1 | 1\n", "line 2: 'log a 1 | 1 | 1': entries, with at most one"),
        ("replicas a b c\nelect a\nlog b 1\n", "line 3: 'log': it describes the scene"),
        ("replicas a b c\nset batch 0\n", "line 2: '0': batch is at least 1"),
        ("replicas a b c\nset pre-vote maybe\n", "line 2: 'maybe': no such value"),
        ("replicas a b c\ntick a soon\n", "line 2: 'soon': number of ticks must be"),
        ("replicas a b c\ntick a 99999999\n", "line 2: '99999999': number of ticks must be"),
        ("replicas a b c\ncut a b | b c\n", "line 2: 'b': on both sides"),
        ("replicas a b c\nappend a\n", "line 2: 'append a': what is to be appended is missing"),
        ("replicas a b a\n", "line 1: 'a': named twice"),
        ("replicas a all\n", "line 1: 'all': a node's name"),
        ("replicas\n", "line 1: 'replicas': 1 to 31 nodes, found 0"),
        ("elect a\n", "line 1: 'elect': a script begins with"),
        ("replicas a\nreplicas b\n", "line 2: 'replicas': the scene is laid once"),
        ("replicas a b c\nfence a\n", "line 2: 'fence': only where replicas are appointed"),
        ("appointed a b c\ncampaign a\n", "line 2: 'campaign': only where replicas vote"),
        ("replicas a b c\nelect a\n", "play.txt expects nothing"),
        ("", "play.txt expects nothing"),
    ],
)
def test_a_mistake_names_line_and_word_before_anything_runs(tmp_path: Path, text: str, message: str) -> None:
    path = script(tmp_path, text)
    with pytest.raises(InvalidRequestError) as raised:
        read_script(path)
    assert message in raised.value.message
    result = call("--script", str(path))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


WORDS = st.sampled_from(
    [*COMMANDS, *PROPERTIES, "a", "b", "c", "all", "|", "->", "1", "2:x", "empty", "like", "none", "off"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(WORDS, min_size=1, max_size=5), max_size=8))
def test_any_words_are_understood_or_refused(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]]
) -> None:
    text = "replicas a b c\n" + "\n".join(" ".join(words) for words in lines) + "\nexpect all term 0\n"
    path = script(tmp_path_factory.mktemp("words"), text)
    try:
        outcome = run_script(path)
    except InvalidRequestError:
        return
    assert "broke" not in outcome.failure, text


SAFE_STEPS = st.sampled_from(
    [*(f"{step} {node}" for step in ("hold", "drop to", "deliver to", "repeat to", "cut") for node in "abc"),
     "tick a 7", "tick b 13", "tick c 25", "tick all 3", "deliver", "heal", "settle", "cut a -> b", "drop from c"]
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(SAFE_STEPS, max_size=60), st.sampled_from(["on", "off"]))
def test_no_order_of_steps_breaks_a_promise(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], pre_vote: str
) -> None:
    text = "\n".join(
        ["replicas a b c", f"set pre-vote {pre_vote}", "set batch 1", "log a b 1 | 2", "log c 1 | 3", *steps]
    )
    sync = "\nsync all\nheal\ntick b 25\nsettle\nexpect a b c end 0\n"
    outcome = run_script(script(tmp_path_factory.mktemp("steps"), text + sync))
    assert "broke" not in outcome.failure, text


def test_the_page_names_every_word_and_its_example_works(tmp_path: Path) -> None:
    page = (SCENARIOS.parent / "docs" / "simulation.md").read_text().split("## Scenarios in words")[1]
    assert [word for word in (*COMMANDS, *PROPERTIES) if not re.search(rf"[`/ ]{word}\b", page)] == []
    assert run(tmp_path, page.split("```")[1]) == ""


def test_json_is_one_object(tmp_path: Path) -> None:
    path = script(tmp_path, LEADS + "expect a commit 9\n")
    found = json.loads(call("--script", str(path), "--json").stdout)
    assert found == {
        "script": str(path),
        "steps": 4,
        "failure": {"line": 5, "message": "expected a commit 9, found 3"},
    }


@pytest.mark.parametrize("more", [("--seeds", "3"), ("--seed", "1"), ("--profile", "raft")])
def test_a_script_has_no_seeds(more: tuple[str, ...]) -> None:
    assert call("--script", str(SCENARIOS / "figure-7.txt"), *more).exit_code == 2


def test_an_absent_script_is_wrong_usage(tmp_path: Path) -> None:
    result = call("--script", str(tmp_path / "absent.txt"))
    assert result.exit_code == 2
    assert "cannot read" in result.stderr


def test_the_same_script_goes_the_same_way_every_time() -> None:
    runs: list[list[str]] = [[], []]
    for lines in runs:
        run_script(SCENARIOS / "figure-8.txt", lines.append)
    assert runs[0] == runs[1]
    with mutated(OF_SCRIPTS["h4-older-term-by-counting"]):
        assert run_script(SCENARIOS / "figure-8.txt").line
    assert not run_script(SCENARIOS / "figure-8.txt").line, "a mutant leaves nothing behind"
