"""What transactional producers of the simulator have asked for, and what they were told."""

from dataclasses import dataclass, field


@dataclass
class Asked:
    """One transaction as its client knows it. `outcome`: committed, not, or unknown; `broken`: the promise if it was not."""

    text: str
    name: str
    sent: set[str] = field(default_factory=set)
    acknowledged: dict[int, list[str]] = field(default_factory=dict)
    offset: int | None = None
    outcome: str = "unknown"
    broken: str = ""
    at_rest: bool = False


class Book:
    """What all of them have asked for, by its text, and how often it went how."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.outcomes = {"transactions_committed": 0, "transactions_aborted": 0, "zombies": 0}
