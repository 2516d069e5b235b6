"""The formats that a node tells: every kind of file that the code writes is among them."""

import ast
import re
from pathlib import Path

import antiphon
from antiphon.node.formats import FORMATS

SOURCE = Path(antiphon.__file__).parent
NAMES = {
    "ANTIPHAB": "aborted",
    "ANTIPHBD": "behind damage",
    "ANTIPHCP": "compaction",
    "ANTIPHDM": "damage",
    "ANTIPHHS": "hard state",
    "ANTIPHHW": "hard state",
    "ANTIPHID": "identity",
    "ANTIPHIN": "installation",
    "ANTIPHIV": "inventory",
    "ANTIPHIX": "index",
    "ANTIPHLT": "hard state",
    "ANTIPHPL": "placement",
    "ANTIPHSS": "snapshot",
    "ANTIPHST": "start",
    "ANTIPHSW": "compaction",
    "ANTIPHVC": "origins",
    "ANTIPHVO": "voters",
}
MAGIC = re.compile(rb"ANTIPH[A-Z]{2}")
OTHERS = {
    "ANTIPHFU",  # `first-user`: written for one start, and removed by it
    "ANTIPHMR",  # of the simulator
}


def magics() -> set[str]:
    """The first bytes of files, wherever the code has them."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "ANTIPH" not in text:
            continue
        texts = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        found |= {one.decode() for one in texts if isinstance(one, bytes) and MAGIC.fullmatch(one)}
    return found


def test_every_kind_of_file_is_among_the_formats_that_a_node_tells() -> None:
    assert magics() == {*NAMES, *OTHERS}
    assert set(NAMES.values()) <= {name for name, _, _ in FORMATS}


def test_formats_page_names_every_kind_of_file() -> None:
    page = (SOURCE.parents[1] / "docs" / "formats.md").read_text()
    assert not [magic for magic in NAMES if magic not in page]
