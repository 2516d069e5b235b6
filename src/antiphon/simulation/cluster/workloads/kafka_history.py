"""What the members of a consumer group asked for, and what they were told."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from antiphon.simulation.violation import require

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
class Commits:
    """The commits that members of a group asked for, and what they were told of them and of committed offsets.

    Judged by `places`: by the texts of commits, where they are in the log of the group's shard.
    """

    commits: dict[str, Commit] = field(default_factory=dict)  # by its text
    acknowledged: dict[int, list[str]] = field(default_factory=dict)  # by partition, in order of time
    found: list[Found] = field(default_factory=list)

    def answered(self, text: str, error: int, refused: Collection[int]) -> str:
        """A commit was answered with an error code, or 0; returns its outcome. `refused`: codes that say that it is not."""
        asked = self.commits[text]
        if not error:
            asked.outcome = "acknowledged"
            self.acknowledged.setdefault(asked.partition, []).append(text)
        elif error in refused:
            asked.outcome = "refused"
        return asked.outcome

    def known(self, partitions: tuple[int, ...]) -> dict[int, int]:
        """How many commits of each partition were acknowledged by now."""
        return {partition: len(self.acknowledged.get(partition, ())) for partition in partitions}

    def was_found(self, one: Any, known: dict[int, int]) -> int:
        """A fetch said this of a partition, `known` when it began; returns where to go on."""
        text = one.metadata if one.committed_offset >= 0 else None
        partition = one.partition_index
        self.found.append(Found(partition, one.committed_offset, text, known[partition]))
        return max(0, int(one.committed_offset))

    def check(self, shard_id: int, places: dict[str, int]) -> None:
        """What was acknowledged is in the log, what was refused is not; each fetch found the last commit or a later one."""
        for text, asked in self.commits.items():
            require(
                text in places or asked.outcome != "acknowledged",
                "commit-kept",
                f"the commit {text} of {asked.offset} was acknowledged, and is not in the log",
                shard_id,
            )
            require(
                text not in places or asked.outcome != "refused",
                "refused-commit",
                f"the commit {text} of {asked.offset} was refused, and is in the log",
                shard_id,
            )
        for found in self.found:
            self._check_found(shard_id, places, found)

    def _check_found(self, shard_id: int, places: dict[str, int], found: Found) -> None:
        before = self.acknowledged.get(found.partition, [])[: found.known]
        last = max(before, key=places.__getitem__, default=None)
        place = -1
        if found.text is not None:
            asked = self.commits.get(found.text)
            require(
                asked is not None and found.text in places and asked.offset == found.offset,
                "commit-found",
                f"a member was told of the commit {found.text} of {found.offset}, which is not in the log",
                shard_id,
            )
            place = places[found.text]
        require(
            last is None or place >= places[last],
            "commit-found",
            f"a member was told that {found.text} is the last commit of partition {found.partition} "
            f"(offset {found.offset}), after {last} had been acknowledged",
            shard_id,
        )


@dataclass(slots=True)
class History(Commits):
    """What members asked for and were told."""

    outcomes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("joined", "committed", "commit_refused", "commit_unknown", "outlived"), 0
        )
    )
    meant: dict[Round, dict[str, tuple[int, ...]]] = field(default_factory=dict)  # by the leader, by member
    owners: dict[tuple[Round, int], str] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)
    instances: dict[str, str] = field(default_factory=dict)  # of static members, by member id
