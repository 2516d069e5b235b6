"""The soak's picture: memory, descriptors, CPU and what clients waited, over the whole run."""

from pathlib import Path
from typing import Any, Final

from antiphon.tools.demo.plot import BLUE, GREEN, GREY, ORANGE, RED
from tests.soak.figures import JUDGED_FROM

STYLES: Final = ("-", "--", "-.", ":")
NODE_COLOURS: Final = (BLUE, ORANGE, GREEN)
KIND_COLOURS: Final = (BLUE, ORANGE, GREEN, RED, GREY, "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def draw(path: Path, result: dict[str, Any]) -> None:
    """Write the PNG from what `soak.json` holds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    nodes, seconds = result["nodes"], result["seconds"]
    figure, axes = plt.subplots(5, 1, sharex=True, figsize=(10, 14), layout="constrained")
    memory, descriptors, cpu, half, most = axes
    said = "nothing grows" if result["steady"] else "something grows"
    figure.suptitle(
        f"{seconds / 60:.1f} minutes, {result['requests']:,} requests, "
        f"{result['connections']:,} connections that came and went: {said}",
        fontsize=13,
    )
    for number, (name, series) in enumerate(nodes.items()):
        style = {"color": NODE_COLOURS[number % 3], "ls": STYLES[number % 4], "lw": 1.4, "label": name}
        at = [one / 60 for one in series["at_s"]]
        memory.plot(at, series["resident_mib"], **style)
        descriptors.plot(at, series["descriptors"], **style)
        cpu.plot(at, series["cpu"], **{**style, "lw": 0.6})
    load = result["machine"]["load"]
    whole = cpu.twinx()
    whole.plot([n / 60 for n in range(len(load))], load, color=GREY, lw=1.2)
    whole.set_ylabel("load of the machine", color=GREY)
    whole.set_ylim(bottom=0)
    whole.spines[["top"]].set_visible(False)
    for number, (kind, rows) in enumerate(result["latencies"].items()):
        style = {"color": KIND_COLOURS[number % 9], "ls": STYLES[number // 3 % 4], "lw": 1.2, "label": kind}
        at = [row[0] / 60 for row in rows]
        half.plot(at, [row[2] for row in rows], **style)
        most.plot(at, [row[3] for row in rows], **style)
    for axis, label in zip(
        axes,
        ("resident memory, MiB", "descriptors", "cores in use", "p50, ms", "p99, ms"),
        strict=True,
    ):
        _style(axis, label, seconds / 60)
    for axis in (half, most):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
    most.set_xlabel("minutes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _style(axis: Any, label: str, minutes: float) -> None:
    axis.set_ylabel(label)
    axis.set_xlim(0, minutes)
    if not label.startswith("p"):  # the latencies' axes are logarithmic
        axis.set_ylim(bottom=0)
    axis.axvline(minutes * JUDGED_FROM, color=GREY, ls=":", lw=1.2)
    axis.grid(color="#dddddd", lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, frameon=False, borderaxespad=0.2, fontsize=8
    )
