"""Figures of a demo run, and how they are told."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from antiphon.tools.demo.lake import Epoch, Proof

if TYPE_CHECKING:
    from array import array

GAP_LOOK_S: Final = 30  # how long after the kill a gap is still the kill's


@dataclass
class Marks:
    """Moments of a run, in ns since 1970; 0: did not happen."""

    started_ns: int = 0
    killed_ns: int = 0
    restarted_ns: int = 0
    killed_node: int = -1
    killed_shard: int = -1
    led_shards: tuple[int, ...] = ()  # shards of the topic that the killed node led


@dataclass
class Figures:
    """What the demo measured. Delays run from the producer's timestamp to the commit of the lake's micro-batch."""

    events: int
    nodes: int
    append_seconds: float
    events_per_s: int
    puts_per_s: int
    lake_seconds: float
    lake_events_per_s: int
    failover_gap_ms: int
    failover_gap_all_shards_ms: int
    end_to_end_ms_median: int
    end_to_end_ms_p95: int
    end_to_end_ms_max: int
    pace: int  # events a second that the load was held to; 0: no limit
    killed_node: int
    killed_shard: int
    total_seconds: float
    proofs: list[Proof] = field(default_factory=list)
    plot: str = ""
    dir: str = ""

    @property
    def proved(self) -> bool:
        """Do all proofs hold?"""
        return all(proof.holds for proof in self.proofs)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "proofs": [proof._asdict() for proof in self.proofs], "ok": self.proved}


def longest_gap_ms(
    times_ns: "array[int]", shards: "array[int]", killed_ns: int, which: Sequence[int] | None
) -> int:
    """Longest time without an acknowledged event around the kill, over the given shards (each on its own), or over all.

    A gap counts when it ends after the kill and begins no later than `GAP_LOOK_S` after it.
    """
    groups: dict[int, list[int]] = {}
    for time_ns, shard in zip(times_ns, shards, strict=False):
        if which is None:
            groups.setdefault(0, []).append(time_ns)
        elif shard in which:
            groups.setdefault(shard, []).append(time_ns)
    longest = 0
    for times in groups.values():
        times.sort()
        for before, after in itertools.pairwise(times):
            if after > killed_ns and before <= killed_ns + GAP_LOOK_S * 1_000_000_000:
                longest = max(longest, after - before)
    return longest // 1_000_000


def print_report(figures: Figures) -> None:
    """The report as people read it, on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", justify="right", no_wrap=True)
    table.add_column()
    for number, text in _lines(figures):
        table.add_row(number, text)
    console.print()
    console.print(table)
    console.print()
    for proof in figures.proofs:
        mark = "[green]proved[/]" if proof.holds else "[bold red]FAILED[/]"
        console.print(f"{mark}  {proof.claim}  [dim]({proof.found})[/]")
    console.print()


def _pace(figures: Figures) -> str:
    return f"; held to {figures.pace:,}/s, --rate 0 for full speed" if figures.pace else ""


def _lines(figures: Figures) -> list[tuple[str, str]]:
    return [
        (
            f"{figures.events:,}",
            f"events appended and put, on {figures.nodes} nodes, each write on a majority of disks",
        ),
        (
            f"{figures.events_per_s:,}/s",
            f"events acknowledged over Kafka's protocol ({figures.append_seconds:.1f} s{_pace(figures)})",
        ),
        (f"{figures.puts_per_s:,}/s", "puts of aircraft acknowledged, at the same time"),
        (
            f"{figures.lake_events_per_s:,}/s",
            f"events through Spark into Parquet ({figures.lake_seconds:.1f} s)",
        ),
        (
            f"{figures.failover_gap_ms:,} ms",
            (
                f"fail-over: longest wait for an acknowledgement in a shard whose leader (node {figures.killed_node}) was "
                f"killed; over all shards {figures.failover_gap_all_shards_ms:,} ms"
            ),
        ),
        (
            f"{figures.end_to_end_ms_median / 1000:.1f} s",
            (
                f"median from producer to lake; 95 % within {figures.end_to_end_ms_p95 / 1000:.1f} s, "
                f"all within {figures.end_to_end_ms_max / 1000:.1f} s"
            ),
        ),
    ]


def lake_curve(epochs: Sequence[Epoch]) -> tuple[list[int], list[int]]:
    """(ms since 1970, events in the lake by then), a step per micro-batch."""
    times, totals, total = [], [], 0
    for epoch in sorted(epochs, key=lambda epoch: epoch.committed_ms):
        total += epoch.rows
        times.append(epoch.committed_ms)
        totals.append(total)
    return times, totals
