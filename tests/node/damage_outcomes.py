"""What came of a trial of damage."""

from dataclasses import dataclass, field
from typing import Final

RUNNING: Final = "running"
TO_DO: Final = ("restore", "give", "move", "start", "copy", "put")  # a refusal says what to do


@dataclass
class Trial:
    """One file of one node, damaged in one way, and what came of it.

    `before`: the nodes were `stopped` or `killed`, and are started then; or they run.
    """

    kind: str
    path: str
    harm: str
    before: str
    refused: str = ""
    served: bool = False
    told: list[str] = field(default_factory=list)
    mended: bool = False
    wrong: str = ""

    @property
    def is_good(self) -> bool:
        """Was nothing lost, nobody answered wrongly, nobody kept from serving, and all told that had to be?"""
        if self.wrong or not self.served:
            return False
        if self.refused:
            return os_name(self.path) in self.refused and any(word in self.refused for word in TO_DO)
        return self.mended or bool(self.told)

    @property
    def word(self) -> str:
        """For the table."""
        if not self.is_good:
            return "BAD"
        if self.refused:
            return "refused"
        if self.mended:
            return "mended" if self.told else "as before"
        return "told"


def os_name(path: str) -> str:
    """The file's name."""
    return path.rsplit("/", 1)[1]
