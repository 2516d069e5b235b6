"""The kinds of lake tables that there are: one row each.

What `open_target` takes, the keys of `[target]` in a pipeline, `--to-NAME` of `antiphon replay`, the formats of `antiphon
load`, the table in docs/lake.md and the kinds that the tests run over follow from these rows. Nothing here loads a library.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from antiphon.client.given import meant
from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.layout import LAYOUT_OPTIONS, TRANSFORMS, layout_of

# Options of targets, with the types that they have in a pipeline's file. `kind` says which row it is.
OPTIONS: Final[dict[str, tuple[type, ...]]] = {
    "kind": (str,),
    "path": (str,),
    "table": (str,),
    "storage": (dict,),
    "catalog": (dict, str),
    "partition_by": (list, str),
    "sort_by": (list, str),
    "z_order_by": (list, str),
    "properties": (dict,),
}

NAMED: Final = "@"  # in place of a warehouse's path: what follows is the name of a catalog


@dataclass(frozen=True, kw_only=True)
class TargetKind:
    """One kind of lake table.

    Attributes:
        name: as in `KIND:PLACE`, `kind`, and `--to-NAME`.
        opens: `module:function` that takes the options and returns the `Target`.
        called: what one is called in the help of `--to-NAME`.
        options: those of OPTIONS that it takes beside `kind`.
        place: what stands for PLACE. With the option `table` it is `WAREHOUSE#TABLE`, else the path.
        commit: how a commit is made, for the docs.
        refusal: why its rows cannot be changed, as a sentence without its full stop; None where they can be.
        transforms: those that its partitions know, beside columns as they are (`layout.TRANSFORMS`).
        rigid: why its columns cannot get wider types, in a few words; None where they can.
        marker: a folder in each table's folder by which one is known, for kinds that `antiphon load` reads.
    """

    name: str
    opens: str
    called: str
    options: tuple[str, ...] = ("path", "storage")
    place: str = "PATH"
    commit: str
    refusal: str | None = None
    transforms: tuple[str, ...] = ()
    rigid: str | None = None
    marker: str | None = None

    @property
    def widens(self) -> bool:
        """Can its columns get wider types, with the files as they are?"""
        return self.rigid is None

    @property
    def has_tables(self) -> bool:
        """Is one found by the name of a table, in a catalog?"""
        return "table" in self.options

    def refuse_changes(self) -> None:
        """InvalidRequestError where rows of this kind cannot be changed, and a table can therefore not be mirrored."""
        if self.refusal is not None:
            others = " or ".join(kind.name for kind in KINDS.values() if kind.refusal is None)
            raise InvalidRequestError(f"{self.refusal}: mirror a table to a target of kind {others}")


_ROWS: Final = (
    TargetKind(
        name="delta",
        opens="antiphon.lake.targets.delta:open_delta",
        called="A Delta Lake table: path or URL.",
        options=("path", "storage", "partition_by", "z_order_by", "properties"),
        commit="an `add` and app transactions in one commit of the Delta log (`deltalake`)",
        rigid="deltalake cannot widen columns",
        marker="_delta_log",
    ),
    TargetKind(
        name="iceberg",
        opens="antiphon.lake.targets.iceberg:open_iceberg",
        called="An Iceberg table: WAREHOUSE#NAMESPACE.TABLE.",
        options=("path", "table", "storage", "catalog", "partition_by", "sort_by", "properties"),
        place="WAREHOUSE#NAMESPACE.TABLE",
        transforms=tuple(TRANSFORMS),
        commit="data files and table properties in one commit of the catalog (`pyiceberg`)",
    ),
    TargetKind(
        name="parquet",
        opens="antiphon.lake.targets.parquet:open_parquet",
        called="A folder of Parquet files.",
        options=("path", "storage", "partition_by", "sort_by"),
        commit="a commit log of its own in `_antiphon/log`; files are renamed into the folder once they are committed, so "
        "any reader of the folder sees committed rows only",
        refusal="Parquet files cannot be changed in place",
    ),
)
KINDS: Final[dict[str, TargetKind]] = {row.name: row for row in _ROWS}


def options_of(target: str | Mapping[str, Any]) -> tuple[TargetKind, dict[str, Any]]:
    """The kind and the options of a target, given as `KIND:PLACE` or as a mapping. Raises InvalidRequestError."""
    if isinstance(target, str):
        return _parsed(target)
    for name in target:
        if name not in OPTIONS:
            raise InvalidRequestError(f"a target has no option {name!r}; {meant(name, OPTIONS)}")
    given = str(target.get("kind", "")).lower()
    kind = KINDS.get(given)
    if kind is None:
        raise InvalidRequestError(f"a target's kind is one of {', '.join(KINDS)}, not {given!r}")
    options = {name: value for name, value in target.items() if name != "kind"}
    for name in options:
        if name not in kind.options:
            takers = " or ".join(other.name for other in KINDS.values() if name in other.options)
            raise InvalidRequestError(f"option {name} is for targets of kind {takers}, not {kind.name}")
    if not kind.has_tables and not options.get("path"):
        raise InvalidRequestError(f"a target of kind {kind.name} needs a path")
    layout_of(options, kind.transforms, kind.name)
    return kind, options


def _parsed(text: str) -> tuple[TargetKind, dict[str, Any]]:
    name, _, place = text.partition(":")
    kind = KINDS.get(name)
    if kind is None or not place:
        raise InvalidRequestError(
            f"{text!r} is no target; give KIND:PATH, such as delta:/lake/flights, with a kind of {', '.join(KINDS)}"
        )
    if kind.has_tables:
        warehouse, _, table = place.rpartition("#")
        if warehouse.startswith(NAMED):
            return kind, {"catalog": warehouse.removeprefix(NAMED), "table": table}
        return kind, {"path": warehouse, "table": table}
    return kind, {"path": place}


def table_of_layouts() -> str:
    """Which options of layouts each kind takes, for the docs."""
    lines = ["| kind | `partition_by` | `sort_by` | `z_order_by` | `properties` |", "|---|---|---|---|---|"]
    for kind in KINDS.values():
        transforms = (
            f"columns, {', '.join(_written(name) for name in kind.transforms)}"
            if kind.transforms
            else "columns"
        )
        takes = dict.fromkeys(LAYOUT_OPTIONS, "yes") | {"partition_by": transforms}
        cells = [takes[name] if name in kind.options else "no" for name in LAYOUT_OPTIONS]
        lines.append(f"| `{kind.name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _written(transform: str) -> str:
    return f"`{transform}({'N, ' if TRANSFORMS[transform] else ''}COLUMN)`"


def table_of_kinds() -> str:
    """The rows as a table for the docs."""
    lines = ["| kind | place | commit | accepts | wider types |", "|---|---|---|---|---|"]
    for kind in KINDS.values():
        accepts = "topics, tables" if kind.refusal is None else "topics"
        widens = kind.rigid or "yes"
        lines.append(f"| `{kind.name}` | `{kind.place}` | {kind.commit} | {accepts} | {widens} |")
    return "\n".join(lines)
