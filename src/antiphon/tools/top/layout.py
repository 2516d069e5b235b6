"""The lines of a screen of a given size. Pure. No line is wider than the screen, and no more are made than fit."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rich.cells import cell_len, set_cell_size

from antiphon.tools.top.view import EventRow, GroupRow, NodeRow, ShardRow, View

GAP: Final = "  "
GROUPS_SHARE: Final = 4  # groups get a fourth of what is left below the nodes, events the same
FOLD_MIN: Final = 3
FOLD_MS: Final = 1000
BAD_STATES: Final = ("DOWN", "no answer", "not in")


class Line(NamedTuple):
    """A line and how it looks: bad, warn, head, title, or as it is."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column of a table. The highest `rank` is left out first where the screen is narrow; 0 stays and is cut."""

    heading: str
    cell: Callable[[Any], str]
    rank: int = 0
    is_text: bool = False


# -- figures ------------------------------------------------------------------------------------------------------


def amount(value: float | None, base: int = 1000) -> str:
    """A number in at most five characters, such as 12.3k; with base 1024 for bytes."""
    if value is None:
        return "-"
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            break
        value /= base
    digits = 0 if (not unit and value == int(value)) or value >= 99.95 else 1
    return f"{value:.{digits}f}{unit}"


def size(value: float | None) -> str:
    """Bytes, in powers of 1024."""
    return amount(value, 1024)


def milliseconds(seconds: float | None) -> str:
    """A duration; `>10s` for one above all bounds."""
    if seconds is None:
        return "-"
    if seconds == float("inf"):
        return ">10s"
    value = seconds * 1000
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def duration(seconds: int | None) -> str:
    """How long a node runs, in at most four characters or so: 42s, 17m, 5h, 12d."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def printable(text: str) -> str:
    """Names come from clients: what would move the cursor or turn text around is shown as its escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _rate(name: str, show: Callable[[float | None], str] = amount) -> Callable[[NodeRow], str]:
    return lambda row: show(None if row.rates is None else getattr(row.rates, name))


# -- tables -------------------------------------------------------------------------------------------------------

NODES: Final = (
    Column("NODE", lambda row: f"{row.node}{'*' if row.coordinates else ''}"),
    Column("STATE", lambda row: row.state, is_text=True),
    Column("LEADS", lambda row: str(row.leads), 2),
    Column("REPL", lambda row: str(row.replicas), 9),
    Column("APP/s", _rate("appends"), 8),
    Column("REC/s", _rate("records"), 1),
    Column("IN/s", _rate("bytes_in", size), 1),
    Column("OUT/s", _rate("bytes_out", size), 3),
    Column("OPS/s", _rate("table_ops"), 6),
    Column("GETS/s", _rate("table_reads"), 7),
    Column("COMMIT99", _rate("commit_p99_s", milliseconds), 2),
    Column("SYNC99", _rate("sync_p99_s", milliseconds), 4),
    Column("MEM", lambda row: size(row.memory_bytes), 3),
    Column("CPU%", lambda row: "-" if row.rates is None else f"{row.rates.cpu * 100:.0f}", 4),
    Column("FDS", lambda row: _number(row.descriptors), 5),
    Column("UP", lambda row: duration(row.uptime_s), 7),
)
SHARDS: Final = (
    Column("SHARD", lambda row: f"{printable(row.topic)}/{row.shard}", is_text=True),
    Column("LEADER", lambda row: _number(row.leader)),
    Column("TERM", lambda row: str(row.term), 5),
    Column("REC/s", lambda row: amount(row.records_s)),
    Column("LAG", lambda row: amount(row.lag)),
    Column("SLOWEST", lambda row: _number(row.lag_node), 4),
    Column("SIZE", lambda row: size(row.size_bytes), 3),
    Column("END", lambda row: _number(row.log_end), 6),
    Column(
        "STATUS", lambda row: row.status if row.status != "Online" else row.state or "ok", 2, is_text=True
    ),
)
GROUPS: Final = (
    Column("GROUP", lambda row: printable(row.group), is_text=True),
    Column("KIND", lambda row: row.kind, 3, is_text=True),
    Column("LAG", lambda row: amount(row.lag) + ("+?" if row.unknown else "")),
    Column("SHARDS", lambda row: str(row.shards), 2),
    Column("MOST BEHIND", lambda row: printable(row.worst) or "-", 1, is_text=True),
)


def table(columns: Sequence[Column], rows: Sequence[Any], width: int) -> list[str]:
    """Headings and rows; columns that do not fit are left out by their rank, then the widest text is cut."""
    shown = list(columns)
    cells = {column: [column.cell(row) for row in rows] for column in shown}
    widths = {column: max(map(cell_len, (column.heading, *cells[column]))) for column in shown}
    while _total(shown, widths) > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    over = _total(shown, widths) - width
    if over > 0:
        widest = max(
            (column for column in shown if column.is_text),
            key=lambda column: widths[column],
            default=shown[0],
        )
        widths[widest] = max(1, widths[widest] - over)
    lines = [[column.heading for column in shown]]
    lines += [[cells[column][at] for column in shown] for at in range(len(rows))]
    return [
        cut(
            GAP.join(_pad(text, widths[column], column) for text, column in zip(line, shown, strict=True)),
            width,
        )
        for line in lines
    ]


def _total(columns: Sequence[Column], widths: dict[Column, int]) -> int:
    return sum(widths[column] for column in columns) + len(GAP) * (len(columns) - 1)


def _pad(text: str, width: int, column: Column) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "~" if width > 1 else "~"
    return set_cell_size(text, width) if column.is_text else " " * (width - cell_len(text)) + text


def cut(text: str, width: int) -> str:
    """Without what is beyond the width, and without blanks at the end."""
    return (text if cell_len(text) <= width else set_cell_size(text, width)).rstrip()


# -- the screen ---------------------------------------------------------------------------------------------------


def screen(view: View, width: int, height: int, keys: str = "") -> list[Line]:
    """All of a screen, at most `height` lines; `keys`: what the keyboard does, for the first line."""
    lines = _header(view, width, keys)
    nodes = _section(view.nodes, max(2, (height - len(lines)) * 2 // 5), NODES, width, _node_style)
    left = height - len(lines) - len(nodes)
    share = max(0, left // GROUPS_SHARE)
    groups = _groups(view, share, width)
    events = _events(view.events, share + max(0, share - len(groups)), width)
    shards = _section(view.busiest, left - len(groups) - len(events) - 1, SHARDS, width, _shard_style)
    shards = [Line(""), *shards] if shards else []
    return [*lines, *nodes, *shards, *groups, *events][:height]


def _header(view: View, width: int, keys: str) -> list[Line]:
    up = sum(row.state not in BAD_STATES for row in view.nodes)
    of_topic = f", only {printable(view.topic)}" if view.topic else ""
    sums = [_sum(view, name) for name in ("records", "bytes_in", "bytes_out", "table_ops")]
    at = datetime.fromtimestamp(view.at_s, UTC)
    first = (
        f"antiphon top {at:%H:%M:%S}Z  cluster {printable(view.cluster_id)[:8]}  {up} of {len(view.nodes)} nodes up, "
        f"node {view.controller} coordinates"
    )
    second = (
        f"{view.shards} shards, {view.without_leader} without leader, {view.under_replicated} under-replicated; "
        f"{view.topics} topics, {view.tables} tables"
    )
    third = (
        f"records {amount(sums[0])}/s  in {size(sums[1])}B/s  out {size(sums[2])}B/s  table ops {amount(sums[3])}/s"
        f"  by {view.sort}{of_topic}"
    )
    if view.shards_asked < view.shards:
        third += f"  ({view.shards_asked} shards asked at a time)"
    wrong = view.without_leader or view.under_replicated or up < len(view.nodes)
    lines = [
        Line(cut(first + (f"   {keys}" if keys else ""), width), "title"),
        Line(cut(second, width), "bad" if view.without_leader else "warn" if wrong else ""),
        Line(cut(third, width)),
    ]
    if view.problem:
        lines.append(Line(cut(f"! {printable(view.problem)}", width), "bad"))
    found = [(row.node, row.findings) for row in view.nodes if row.findings]
    if found:
        told = ", ".join(f"{count} on node {node}" for node, count in found)
        lines.append(Line(cut(f"! findings: {told}; `antiphon status` says what", width), "bad"))
    return [*lines, Line("")]


def _sum(view: View, name: str) -> float | None:
    known = [getattr(row.rates, name) for row in view.nodes if row.rates is not None]
    return sum(known) if known else None


def _section(
    rows: Sequence[Any], most: int, columns: Sequence[Column], width: int, style: Callable[[Any], str]
) -> list[Line]:
    """A table of at most so many lines; where rows are left out the last line says how many."""
    if most < 2:
        return []
    shown = rows if len(rows) < most else rows[: most - 2] if most > 2 else rows[:1]
    lines = table(columns, shown, width)
    found = [
        Line(lines[0], "head"),
        *(Line(text, style(row)) for text, row in zip(lines[1:], shown, strict=True)),
    ]
    if len(shown) < len(rows) and len(found) < most:
        found.append(Line(cut(f"and {len(rows) - len(shown)} more", width)))
    return found


def _groups(view: View, most: int, width: int) -> list[Line]:
    if view.groups:
        found = _section(view.groups, most - 1, GROUPS, width, _group_style)
        return [Line(""), *found] if found else []
    if view.groups_note and most >= 2:
        return [Line(""), Line(cut(view.groups_note, width))]
    return []


def _events(events: Sequence[EventRow], most: int, width: int) -> list[Line]:
    if most < 3 or not events:
        return []
    lines = [Line(""), Line(cut("LAST EVENTS", width), "head")]
    for one in folded(events)[: most - 2]:
        at = datetime.fromtimestamp(one.at_ms / 1000, UTC)
        text = f"{at:%H:%M:%S}Z  {one.kind}: {printable(one.subject)} {printable(one.what)}"
        lines.append(Line(cut(text, width), "warn" if one.kind in {"node down", "no leader"} else ""))
    return lines


def folded(events: Sequence[EventRow]) -> list[EventRow]:
    """With three and more of one kind in a row, within a second, as one line.

    What follows from the death of a node must not push it out.
    """
    found: list[EventRow] = []
    at = 0
    while at < len(events):
        one, end = events[at], at + 1
        while end < len(events) and events[end].kind == one.kind and one.at_ms - events[end].at_ms <= FOLD_MS:
            end += 1
        if end - at >= FOLD_MIN:
            found.append(one._replace(what=f"{one.what}, and {end - at - 1} like it"))
        else:
            found += events[at:end]
        at = end
    return found


def _node_style(row: NodeRow) -> str:
    return "bad" if row.state in BAD_STATES else "warn" if row.state != "up" or row.findings else ""


def _shard_style(row: ShardRow) -> str:
    return "bad" if row.leader is None or row.state else "warn" if (row.lag or 0) > 10_000 else ""


def _group_style(row: GroupRow) -> str:
    return "warn" if row.lag > 100_000 else ""
