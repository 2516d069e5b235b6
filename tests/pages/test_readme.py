"""What somebody sees first: how it is installed, and two commands, on the first screen."""

from tests.pages.blocks import ROOT, blocks_of

SCREEN_LINES = 24


def test_the_first_commands_are_on_the_first_screen() -> None:
    first = next(block for block in blocks_of("README.md") if block.language == "sh")
    assert first.line <= SCREEN_LINES
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]
    before = (ROOT / "README.md").read_text().splitlines()[: first.line]
    assert any("`pip install antiphon`" in line for line in before)


def test_commands_are_as_they_are_after_pip() -> None:
    blocks = [block for block in blocks_of("README.md") if block.language == "sh"]
    assert any(line.startswith("antiphon up ") for block in blocks for line in block.text.splitlines())
    assert not any(".venv" in block.text for block in blocks)
