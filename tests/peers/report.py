"""What a run found, for a person: tables with ratios, and a picture of them."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from antiphon.tools.demo.plot import BLUE, GREEN, GREY, ORANGE, RED

COLOURS: Final = (ORANGE, GREEN, RED, "#CC79A7", "#56B4E9")
# Heading, key, and how a figure is written.
COLUMNS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("p50, ms", "p50_ms", "{:.2f}".format),
    ("p99, ms", "p99_ms", "{:.2f}".format),
    ("p99.9, ms", "p999_ms", "{:.2f}".format),
    ("CPU, ms per 1,000", "cpu_s_per_1000", lambda one: f"{one * 1000:.1f}"),
    ("written, KB per 1,000", "written_bytes_per_1000", lambda one: f"{one / 1000:,.0f}"),
    ("flushes per 1,000", "flushes_per_1000", "{:.2f}".format),
)


def middle(figures: list[dict[str, Any]], key: str) -> float | None:
    """The median over the rounds, where there is one."""
    found = [one[key] for one in figures if one.get(key) is not None]
    return median(found) if found else None


def ratio(peers: dict[str, list[dict[str, Any]]], ours: str, peer: str) -> float | None:
    """Our rate over the peer's, both medians."""
    if ours not in peers or peer == ours:
        return None
    own, other = middle(peers[ours], "rate"), middle(peers[peer], "rate")
    return own / other if own and other else None


def markdown(result: dict[str, Any], ours: str) -> str:
    """Tables in Markdown: one line for each row, then one for each peer of each row."""
    parts = []
    for name, heading in (("kafka", "Kafka's protocol"), ("table", "Keys and values")):
        rows = {row: found for row, found in result["rows"].items() if found["protocol"] == name}
        if rows:
            parts.append(f"### {heading}\n\n{_overview(rows, result['peers'], ours)}")
            parts.append(_table(rows, result["peers"], ours))
            parts.append(_shares(rows, result["peers"]))
    settings = "".join(f"- {one['title']}: {one['settings']}\n" for one in result["peers"].values())
    skipped = "".join(f"- {what}: {why}\n" for what, why in result["skipped"].items())
    return "\n".join(parts) + f"\n{settings}" + (f"\nNot measured:\n\n{skipped}" if skipped else "")


def _overview(rows: dict[str, Any], peers: dict[str, Any], ours: str) -> str:
    """Rates, and in brackets Antiphon's rate over the peer's."""
    shown = [name for name in peers if any(name in row["peers"] for row in rows.values())]
    titles = [peers[name]["title"] for name in shown]
    lines = ["| a second | " + " | ".join(titles) + " |", "|---|" + "---|" * len(shown)]
    for name, row in rows.items():
        cells = [f"{name}, {row['unit']}"]
        for peer in shown:
            rate = middle(row["peers"].get(peer, []), "rate")
            over = ratio(row["peers"], ours, peer) if rate else None
            cells.append((f"{rate:,.0f}" if rate else "") + (f" (**{over:.2f}**)" if over else ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _table(rows: dict[str, Any], peers: dict[str, Any], ours: str) -> str:
    headings = ["row", "peer", "a second, median (min..max)", "Antiphon / peer", *(one[0] for one in COLUMNS)]
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for name, row in rows.items():
        for peer, figures in ((one, row["peers"][one]) for one in peers if one in row["peers"]):
            rates = [one["rate"] for one in figures]
            over = ratio(row["peers"], ours, peer)
            cells = [
                name,
                peers[peer]["title"],
                f"{median(rates):,.0f} ({min(rates):,.0f}..{max(rates):,.0f})",
                f"**{over:.2f}**" if over else "",
            ]
            for _, key, write in COLUMNS:
                found = middle(figures, key)
                cells.append("" if found is None else write(found))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


SHARES: Final = {
    "servers_program": "servers' programs",
    "servers_kernel": "kernel for them",
    "clients": "clients",
    "others": "others",
    "idle": "nothing",
    "disk": "disk is busy",
}


def _shares(rows: dict[str, Any], peers: dict[str, Any]) -> str:
    """What the machine's cores did, in percent of their time, and for how much of it the disk had something to do."""
    lines = ["| row | peer | " + " | ".join(SHARES.values()) + " |", "|---|---|" + "---|" * len(SHARES)]
    for name, row in rows.items():
        for peer in peers:
            found = [one["shares"] for one in row["peers"].get(peer, []) if one.get("shares")]
            if found:
                cells = [middle(found, share) for share in SHARES]
                shown = ["" if cell is None else f"{100 * cell:.0f}" for cell in cells]
                lines.append(f"| {name} | {peers[peer]['title']} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def draw(path: Path, result: dict[str, Any], ours: str) -> None:
    """Write the PNG: Antiphon's rate over each peer's, by row; a logarithmic axis, on which 1 is equal."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    others = [name for name in result["peers"] if name != ours]
    rows = [name for name, row in result["rows"].items() if ours in row["peers"] and len(row["peers"]) > 1]
    if not rows:
        return
    figure, axis = plt.subplots(figsize=(10, 1.6 + 0.34 * len(rows)), layout="constrained")
    for number, peer in enumerate(others):
        places, ratios = [], []
        for at, name in enumerate(rows):
            row = result["rows"][name]["peers"]
            found = ratio(row, ours, peer) if peer in row else None
            if found is not None:
                places.append(at + 0.12 * (number - len(others) / 2))
                ratios.append(found)
        if ratios:
            title = result["peers"][peer]["title"]
            axis.scatter(ratios, places, color=COLOURS[number % len(COLOURS)], label=title, zorder=3)
    axis.axvline(1.0, color=BLUE, lw=1.4)
    axis.set_xscale("log")
    ticks = (0.2, 0.5, 1, 2, 5, 10)
    axis.set_xticks(ticks, [f"{one:g}" for one in ticks])
    axis.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.grid(color="#dddddd", lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(
        "Antiphon's operations a second over the peer's (right of the line: Antiphon is faster)", color=GREY
    )
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
