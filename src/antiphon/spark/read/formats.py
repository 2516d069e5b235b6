"""Changes of a table in the forms that other systems' readers know: Delta's change data feed, and Debezium's envelopes.

A table's log has after-images and, for a removed key, that it is gone; what a row was before a change is not in the change.
So `cdf` gives `insert`, `update_postimage` and `delete`, never `update_preimage`, and in `debezium` the field `before` of an
update is null and that of a delete has the key only (as Debezium gives it where a database logs no more than that).

Everything is done for whole columns at a time.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antiphon.client.blocking import Cluster
from antiphon.errors import InvalidRequestError
from antiphon.records.arrow import texts
from antiphon.records.changes import ChangeKind
from antiphon.spark.read.columns import fitted
from antiphon.spark.read.json_text import base64_text, quoted, utf8_text, valid_json
from antiphon.spark.read.options import ReadOptions
from antiphon.spark.read.ranges import Range, change_decoder, read_range
from antiphon.spark.schema import arrow_schema, table_schema

# Not arrays yet: to make one from Python's values pyarrow loads pandas, which every task would pay for.
_KINDS: Final = tuple(kind.value for kind in (ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED))
_CDF_TYPES: Final = ("insert", "update_postimage", "delete")
_OPS: Final = ("c", "u", "d")


def formatted(
    cluster: Cluster, options: ReadOptions, wanted: Range, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The changes in a range, as cdf or debezium. `target` is any choice of the format's columns."""
    rows = read_range(cluster, options, wanted, change_decoder(arrow_schema(table_schema())))
    if options.format == "cdf":
        for changes in rows:
            yield as_cdf(changes, target)
        return
    cluster_id = cluster.metadata(refresh=False).cluster_id
    for changes in rows:
        yield as_debezium(changes, target, options, cluster_id)


def as_cdf(changes: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Columns of Delta's change data feed; `_commit_version` is the change's offset, which rises in its shard."""
    columns = {name: changes.column(name) for name in changes.schema.names}
    columns["_change_type"] = texts(_CDF_TYPES).take(pc.index_in(columns["kind"], texts(_KINDS)))
    columns["_commit_version"] = columns["offset"]
    columns["_commit_timestamp"] = columns["timestamp"]
    return fitted({name: columns[name] for name in target.names}, target)


def as_debezium(
    changes: pa.RecordBatch, target: pa.Schema, options: ReadOptions, cluster_id: str
) -> pa.RecordBatch:
    """Debezium's envelopes in JSON, and a row without a value behind each delete where tombstones are asked for."""
    columns: dict[str, Any] = {name: changes.column(name) for name in changes.schema.names}
    op = texts(_OPS).take(pc.index_in(columns["kind"], texts(_KINDS)))
    columns["value"] = _envelopes(columns, op, options, cluster_id)
    if options.tombstones:
        is_delete = np.asarray(pc.equal(op, "d").to_numpy(zero_copy_only=False), bool)
        rows = np.repeat(np.arange(len(op)), 1 + is_delete)
        is_tombstone = np.zeros(len(rows), bool)
        is_tombstone[1:] = rows[1:] == rows[:-1]
        columns = {name: column.take(pa.array(rows)) for name, column in columns.items()}
        columns["value"] = pc.if_else(pa.array(is_tombstone), pa.scalar(None, pa.string()), columns["value"])
    return fitted({name: columns[name] for name in target.names}, target)


def _envelopes(columns: dict[str, Any], op: Any, options: ReadOptions, cluster_id: str) -> Any:
    """`{"before": ..., "after": ..., "source": {...}, "op": ..., "ts_ms": ..., "transaction": null}` for each change."""
    keys, values = _texts(columns, options)
    before = pc.if_else(pc.equal(op, "d"), _joined('{"key":', keys, ',"value":null}'), "null")
    after = pc.coalesce(_joined('{"key":', keys, ',"value":', values, "}"), pa.scalar("null"))
    ts_ms = _number(pc.cast(columns["timestamp"], pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()))
    name = quoted(pa.array([cluster_id]))[0].as_py()
    table = quoted(pa.array([options.target.name]))[0].as_py()
    source = _joined(
        f'{{"version":"{_version()}","connector":"antiphon","name":{name},"ts_ms":',
        ts_ms,
        f',"snapshot":"false","db":"","sequence":null,"table":{table},"partition":',
        _number(columns["partition"]),
        ',"offset":',
        _number(columns["offset"]),
        ',"row_version":',
        _number(columns["version"]),
        "}",
    )
    head = _joined('{"before":', before, ',"after":', after, ',"source":', source)
    return _joined(head, ',"op":"', op, '","ts_ms":', ts_ms, ',"transaction":null}')


def _texts(columns: dict[str, Any], options: ReadOptions) -> tuple[Any, Any]:
    """Keys and values as JSON; values are null where they are null."""
    keys, values = columns["key"], columns["value"]
    if options.encoding == "base64":
        return _joined('"', base64_text(keys), '"'), _joined('"', base64_text(values), '"')
    try:
        key_text, value_text = utf8_text(keys), utf8_text(values)
        if options.encoding == "json":
            return quoted(key_text), valid_json(value_text)
        return quoted(key_text), quoted(value_text)
    except InvalidRequestError as error:
        row = int(error.details["row"])
        raise InvalidRequestError(
            f"table {options.target.name} shard {columns['partition'][row]}, the change at offset {columns['offset'][row]}: "
            f"{error.message}; option encoding is {options.encoding}, base64 takes everything"
        ) from error


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")


def _number(column: Any) -> Any:
    return column.cast(pa.string())


def _version() -> str:
    try:
        return version("antiphon")
    except PackageNotFoundError:
        return "0"
