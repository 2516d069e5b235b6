"""What the members of a consumer group asked for, and what they were told."""

from dataclasses import dataclass, field

Round = tuple[int, str]
"""A generation and the member that leads it: ids of members are unique, so that no other round is the same."""


@dataclass(slots=True)
class Commit:
    """A commit that some member asked for. `outcome`: acknowledged, refused, or unknown."""

    partition: int
    offset: int
    round: Round
    outcome: str = "unknown"
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a fetch of offsets found: `text` of the commit, None for no commit. `known`: acknowledged when it began."""

    partition: int
    offset: int
    text: str | None
    known: int


@dataclass(frozen=True, slots=True)
class Given:
    """What a member was given in a generation."""

    round: Round
    member_id: str
    owned: tuple[int, ...]


@dataclass(slots=True)
class History:
    """What members asked for and were told."""

    outcomes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("joined", "committed", "commit_refused", "commit_unknown", "outlived"), 0
        )
    )
    commits: dict[str, Commit] = field(default_factory=dict)  # by its text
    acknowledged: dict[int, list[str]] = field(default_factory=dict)  # by partition, in order of time
    found: list[Found] = field(default_factory=list)
    meant: dict[Round, dict[str, tuple[int, ...]]] = field(default_factory=dict)  # by the leader, by member
    owners: dict[tuple[Round, int], str] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)
    instances: dict[str, str] = field(default_factory=dict)  # of static members, by member id
