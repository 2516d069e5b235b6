"""The documentation's made parts are current, and making them works."""

from pathlib import Path

import pytest

from antiphon.replication.replica_state import TRANSITIONS, Role
from antiphon.tools.diagrams import main, redraw, requirement_table, state_diagram

DOCS = Path(__file__).parent.parent.parent / "docs"
ROLES = state_diagram(TRANSITIONS, Role.NOT_MEMBER, Role.FENCED)


def test_the_documentation_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DOCS), "--check"]) == 0, capsys.readouterr().out
    assert ROLES in (DOCS / "protocol.md").read_text(encoding="utf-8")


def test_the_diagram_has_every_edge_once() -> None:
    edges = [line for line in ROLES.splitlines() if " --> " in line and "[*]" not in line]
    assert len(edges) == len(set(edges)) == len(TRANSITIONS)
    assert "    Fenced --> Leader: BecomeLeader" in edges


def test_a_stale_page_is_found_and_redrawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- made: replica states -->\nold\n<!-- end: replica states -->\nafter\n", encoding="utf-8"
    )
    assert main([str(tmp_path), "--check"]) == 1
    assert "old" in page.read_text(encoding="utf-8")
    assert main([str(tmp_path)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert ROLES in text
    assert main([str(tmp_path), "--check"]) == 0
    assert "redrawn" in capsys.readouterr().out


def test_a_page_without_made_parts_stays_as_it_is() -> None:
    assert redraw("nothing here", DOCS.parent) == "nothing here"


def test_a_part_that_nothing_makes_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing makes 'colours'"):
        redraw("<!-- made: colours --><!-- end: colours -->", DOCS.parent)


def test_every_numbered_statement_of_the_carried_documents_has_a_test() -> None:
    table = requirement_table(DOCS.parent)
    shown = {line.split(" ")[1] for line in table.splitlines()[2:]}
    # S0.18, S0.19 and the like speak of tables and notifications: they are carried, and shown, above replication/.
    missing = [f"S0.{n}" for n in range(1, 39) if f"S0.{n}" not in shown]
    missing += [f"S1.{n}" for n in range(1, 39) if f"S1.{n}" not in shown]
    assert missing == []
