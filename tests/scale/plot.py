"""The picture: a column for each thing that grows, with its figures one below the other."""

from pathlib import Path
from typing import Any

from antiphon.tools.demo.plot import BLUE
from tests.scale.axes import AXES

ROWS = 3


def draw(path: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """Write the PNG; `found`: by axis, figures with their `size`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [name for name in AXES if found.get(name)]
    figure, columns = plt.subplots(
        ROWS, len(shown), figsize=(3.6 * len(shown), 7.5), layout="constrained", squeeze=False
    )
    for column, name in enumerate(shown):
        axis, rows = AXES[name], found[name]
        sizes = [row["size"] for row in rows]
        for line in range(ROWS):
            columns[line][column].set_visible(line < len(axis.drawn))
        for line, (key, title) in enumerate(axis.drawn.items()):
            plot = columns[line][column]
            plot.plot(sizes, [row[key] for row in rows], "o-", color=BLUE, lw=1.4, ms=4)
            plot.set_ylim(0, 1.1 * max(row[key] for row in rows))
            plot.set_title(title, fontsize=10)
            plot.set_xlabel(axis.title)
            if max(sizes) > 20 * min(sizes):
                plot.set_xscale("log")
            plot.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,g}"))
            plot.grid(alpha=0.3)
            plot.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
