"""A scenario that is in no file: that of a mutant which no world shows."""

from typing import NamedTuple


class Script(NamedTuple):
    """What `script_language` reads of a file, with a name for who is told of it."""

    name: str
    text: str

    def read_text(self) -> str:
        """As that of a file."""
        return self.text
