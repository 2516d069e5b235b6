"""Options of a write with `format("antiphon")`; what reads and writes share is in `option_values`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.spark.option_values import COMMON, READ, WRITE, Options, Target, refuse

PROTOCOLS: Final = ("staged", "direct")
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_ROWS_DEFAULT: Final = 5_000
BATCH_BYTES_DEFAULT: Final = 512 * 1024


@dataclass(frozen=True)
class WriteOptions:
    """Options of a write. A batch is cut after `batch_rows` rows or `batch_bytes` bytes of keys, values and headers."""

    target: Target
    protocol: str
    txn_id: str | None
    txn_version: int
    batch_rows: int
    batch_bytes: int
    compression: str
    checkpoint: str | None


def parse_write(raw: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Options of `df.write` or `df.writeStream`; raises InvalidRequestError."""
    options = Options(raw, COMMON + WRITE, READ, "a write")
    target = options.target(several=False)
    if streaming:
        refuse(options, "a stream, which is known by its query id", ("txnId", "txnVersion"))
    txn_id, txn_version = options.text("txnId") or None, options.number("txnVersion", None, low=0)
    if txn_version is not None and txn_id is None:
        raise InvalidRequestError("option txnVersion counts the writes of one txnId; give that too")
    if target.is_table:
        refuse(options, "a table", ("compression",))
    return WriteOptions(
        target=target,
        protocol=options.choice("protocol", "staged", PROTOCOLS),
        txn_id=txn_id,
        txn_version=txn_version or 0,
        batch_rows=options.number("batchRows", BATCH_ROWS_DEFAULT, high=100_000) or 0,
        batch_bytes=options.number("batchBytes", BATCH_BYTES_DEFAULT, low=1024, high=32 * 1024 * 1024) or 0,
        compression=options.choice("compression", "none", COMPRESSIONS),
        checkpoint=options.text("checkpointLocation"),
    )
