"""Partitions, sort order and properties of Iceberg tables, and data files as a partitioned table takes them.

`pyiceberg` adds files to partitions that it can infer from their bounds, which it cannot of `bucket`, and writes partitions
itself with a library beside it. Here a file comes with the partition that its task wrote it for.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.layout import IDENTITY, Layout, Order, Term
from antiphon.lake.targets.spread import Spread
from antiphon.lake.targets.staged import DataFile

FORMAT_VERSION: Final = "format-version"  # said as a property, and kept elsewhere
_PLAIN: Final[dict[str, type[Any]]] = {
    IDENTITY: IdentityTransform, "year": YearTransform, "month": MonthTransform, "day": DayTransform, "hour": HourTransform,
}  # fmt: skip
_NUMBERED: Final[dict[str, type[Any]]] = {"bucket": BucketTransform, "truncate": TruncateTransform}


def lay_out(transaction: Transaction, asked: Layout) -> None:
    """Give a table that is being made its partitions and its sort order."""
    if asked.partition_by:
        with transaction.update_spec() as spec:
            for term in asked.partition_by:
                transform = _transform(term)
                name = None if term.transform != IDENTITY else term.column
                spec.add_field(term.column, transform, name)
    if asked.sort_by:
        with transaction.update_sort_order() as order:
            for one in asked.sort_by:
                nulls = NullOrder.NULLS_FIRST if one.nulls_first else NullOrder.NULLS_LAST
                add = order.desc if one.descending else order.asc
                add(one.column, IdentityTransform(), nulls)


def _transform(term: Term) -> "Transform[Any, Any]":
    made: Transform[Any, Any] = (
        _PLAIN[term.transform]() if term.number is None else _NUMBERED[term.transform](term.number)
    )
    return made


def layout_of_table(table: Table) -> Layout:
    """What a table has; a transform that is not known here keeps its name."""
    schema = table.schema()
    terms = [
        _term(str(schema.find_column_name(field.source_id)), field.transform)
        for field in table.spec().fields
        if not isinstance(field.transform, VoidTransform)
    ]
    orders = [
        Order(
            _ordered_by(str(schema.find_column_name(field.source_id)), field.transform),
            field.direction is SortDirection.DESC,
            field.null_order is NullOrder.NULLS_FIRST,
        )
        for field in table.sort_order().fields
    ]
    properties = {**table.properties, FORMAT_VERSION: str(table.metadata.format_version)}
    return Layout(tuple(terms), tuple(orders), (), properties)


def _term(column: str, transform: Any) -> Term:
    for name, kind in _PLAIN.items():
        if isinstance(transform, kind):
            return Term(column, name)
    if isinstance(transform, BucketTransform):
        return Term(column, "bucket", transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        return Term(column, "truncate", transform.width)
    return Term(column, str(transform))


def _ordered_by(column: str, transform: Any) -> str:
    return column if isinstance(transform, IdentityTransform) else str(_term(column, transform))


def spread_of(layout: Layout, columns: Sequence[str], name: str) -> Spread:
    """How rows become files of such a table. Raises InvalidRequestError where it has partitions that are not known here."""
    terms = layout.partition_by or ()
    for term in terms:
        if term.transform not in {*_PLAIN, *_NUMBERED} or term.column not in columns:
            raise InvalidRequestError(
                f"{name} has a partition field {term}, which is not known here: only columns that are in no struct, and "
                f"the transforms {', '.join([*_PLAIN, *_NUMBERED])} are. Write to another table"
            )
    orders = []
    for order in layout.sort_by or ():
        if (
            order.column not in columns
        ):  # by a transform: what comes after it cannot be said of files that lack it
            break
        orders.append(order)
    return Spread(terms, tuple(orders))


def values_of(spec: PartitionSpec, file: IcebergFile) -> tuple[Any, ...]:
    """A file's partition, as `data_files` was told it."""
    return tuple(
        file.partition[at]
        for at, field in enumerate(spec.fields)
        if not isinstance(field.transform, VoidTransform)
    )


def data_files(table: Table, folder: Folder, files: Sequence[DataFile]) -> Iterator[IcebergFile]:
    """Files that tasks wrote, in the partitions that they were written for."""
    import pyarrow.parquet as pq

    schema, spec = table.schema(), table.spec()
    for file in files:
        url = folder.url_of(file.name)
        with table.io.new_input(url).open() as stream:
            footer = pq.read_metadata(stream)
        figures = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(schema, table.metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        values = iter(file.partition.values())
        record = Record(
            *(None if isinstance(one.transform, VoidTransform) else next(values) for one in spec.fields)
        )
        yield IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=url,
            file_format=FileFormat.PARQUET,
            partition=record,
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **figures.to_serialized_dict(),
        )
