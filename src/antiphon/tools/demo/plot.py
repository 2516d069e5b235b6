"""The demo's picture: throughput over time and how far the lake is behind, with the kill marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from antiphon.tools.demo.lake import Epoch
from antiphon.tools.demo.report import Figures, Marks, lake_curve

if TYPE_CHECKING:
    from array import array

# Okabe and Ito's palette, which people with any colour vision can tell apart; styles differ as well.
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
RED: Final = "#D55E00"
GREY: Final = "#666666"
_WHITE: Final = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5}
BINS_MAX: Final = 240
BIN_S_MIN: Final = 0.25


def draw(
    path: Path,
    figures: Figures,
    marks: Marks,
    events_ns: "array[int]",
    puts_ns: "array[int]",
    epochs: Sequence[Epoch],
) -> None:
    """Write the PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import numpy as np
    from matplotlib import pyplot as plt

    start = marks.started_ns
    lake_ms, lake_totals = lake_curve(epochs)
    last_ns = max([*events_ns[-1:], *puts_ns[-1:], *(ms * 1_000_000 for ms in lake_ms[-1:]), start + 1])
    seconds = (last_ns - start) / 1e9
    bin_s = max(BIN_S_MIN, seconds / BINS_MAX)
    edges = np.arange(0, seconds + bin_s, bin_s)
    events_s = (np.frombuffer(events_ns, dtype=np.int64) - start) / 1e9
    puts_s = (np.frombuffer(puts_ns, dtype=np.int64) - start) / 1e9

    figure, (rate, total) = plt.subplots(2, 1, sharex=True, figsize=(10, 6.4), layout="constrained")
    figure.suptitle(
        f"{figures.events:,} flights through {figures.nodes} nodes; a leader is killed half way", fontsize=13
    )
    for values, colour, style, label in (
        (events_s, BLUE, "-", "events appended (Kafka protocol)"),
        (puts_s, ORANGE, "--", "aircraft put in the table"),
    ):
        counts, _ = np.histogram(values, edges)
        rate.plot(
            edges[:-1], counts / bin_s, drawstyle="steps-post", color=colour, ls=style, lw=1.5, label=label
        )
    rate.set_ylabel("acknowledged writes per second")
    ranks = np.arange(1, len(events_s) + 1)
    total.plot(np.sort(events_s), ranks, color=BLUE, lw=2, label="events appended")
    lake_s = [0.0, *((ms - start / 1e6) / 1e3 for ms in lake_ms)]
    total.plot(
        lake_s,
        [0, *lake_totals],
        drawstyle="steps-post",
        color=GREEN,
        ls="-.",
        lw=2,
        label="events in the lake (Parquet)",
    )
    total.set_ylabel("events so far")
    total.set_xlabel("seconds since the first event")
    killed_s, restarted_s = (marks.killed_ns - start) / 1e9, (marks.restarted_ns - start) / 1e9
    for axis in (rate, total):
        _style(axis, seconds, mpl.ticker.StrMethodFormatter("{x:,.0f}"))
        _mark(axis, killed_s, RED, "-")
        _mark(axis, restarted_s, GREY, ":")
    _label(rate, killed_s, RED, f" node {marks.killed_node} killed\n gap {figures.failover_gap_ms:,} ms")
    _label(rate, restarted_s, GREY, " back again")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _style(axis: Any, seconds: float, numbers: Any) -> None:
    axis.set_ylim(bottom=0)
    axis.set_xlim(0, seconds * 1.01)
    axis.yaxis.set_major_formatter(numbers)
    axis.grid(color="#dddddd", lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, borderaxespad=0.2)


def _mark(axis: Any, at_s: float, colour: str, style: str) -> None:
    if at_s > 0:
        axis.axvline(at_s, color=colour, ls=style, lw=1.6, label="_nolegend_")


def _label(axis: Any, at_s: float, colour: str, text: str) -> None:
    """Text beside a mark, below the upper edge of the axis."""
    if at_s > 0:
        where = axis.get_xaxis_transform()
        axis.text(at_s, 0.97, text, color=colour, transform=where, va="top", fontsize=9, bbox=_WHITE)
