"""Small Parquet files into larger ones, a row group at a time: memory holds one group, whatever the sizes."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.spread import Spread
from antiphon.lake.targets.staged import DataFile, PartWriter, fitted


def rewrite(
    files: Sequence[tuple[Folder, str]],
    into: Folder,
    schema: pa.Schema,
    target_bytes: int,
    spread: Spread | None = None,
) -> list[DataFile]:
    """Copy the rows of all files, in order, to new files of about `target_bytes` each in `into`.

    With `spread` each row group is in the table's order; the files are of one partition, and `schema` is what they have.
    """
    made: list[DataFile] = []
    part: PartWriter | None = None
    taken = 0
    try:
        for folder, name in files:
            part = part or PartWriter(into, schema, spread)
            with folder.open_read(name) as stream:
                source = pq.ParquetFile(stream)
                for batch in source.iter_batches():
                    part.write(fitted(batch, schema))
                taken += stream.seek(0, 2)
            if taken >= target_bytes:
                made += _closed(part)
                part, taken = None, 0
        if part is not None:
            made += _closed(part)
    except BaseException:
        if part is not None:
            part.discard()
        for file in made:
            into.delete(file.name)
        raise
    return made


def _closed(part: PartWriter) -> list[DataFile]:
    part.__exit__(None, None, None)
    return [part.file] if part.file is not None else []
