"""What somebody sees first: how it is installed, and two commands, on the first screen."""

from tests.pages.blocks import ROOT, blocks_of

SCREEN_LINES = 24


def test_the_first_commands_are_on_the_first_screen() -> None:
    first = next(block for block in blocks_of("README.md") if block.language == "sh")
    assert first.line <= SCREEN_LINES
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]
    before = (ROOT / "README.md").read_text().splitlines()[: first.line]
    assert any("`pip install antiphon`" in line for line in before)
