"""The answer to a request, read again from the batch that it became: for a request that is sent again."""

from antiphon.errors import CorruptBatchError
from antiphon.model.requests import OpResult, OpStatus, TableWritten
from antiphon.model.rows import Version
from antiphon.records.batch import Buffer, read_header
from antiphon.records.changes import (
    INDEX,
    INDEX_HEADER,
    OUTCOMES_HEADER,
    SEQUENCE_HEADER,
    VERSION,
    VERSION_HEADER,
    Outcome,
    unpack_outcomes,
)
from antiphon.records.decode import decode_records
from antiphon.table.evaluation import DONE


def results_from_batch(batch: Buffer) -> TableWritten:
    """The answer to the request that became `batch`: for a request that is sent again.

    Raises CorruptBatchError if `TableEvaluator` did not make the batch.
    """
    header = read_header(batch)
    written: dict[int, OpResult] = {}
    outcomes: list[Outcome] | None = None
    for place, record in enumerate(decode_records(batch)):
        headers = dict(record.headers)
        packed, index_bytes = headers.get(VERSION_HEADER), headers.get(INDEX_HEADER)
        if packed is None or len(packed) != VERSION.size:
            raise CorruptBatchError(f"the record at offset {record.offset} is no effect of a table operation")
        if place == 0 and (told := headers.get(OUTCOMES_HEADER)) is not None:
            outcomes = unpack_outcomes(told)
        index = place if index_bytes is None else INDEX.unpack(index_bytes)[0]
        if record.value is None:
            written[index] = DONE
        else:
            made = record.key if SEQUENCE_HEADER in headers else None
            written[index] = OpResult(0, Version(*VERSION.unpack(packed)), made)
    if outcomes is None:
        return TableWritten(tuple(written[index] for index in sorted(written)), header.base_offset)
    results = []
    for index, (status, found) in enumerate(outcomes):
        told_by_record = written.get(index)
        if status == OpStatus.OK and told_by_record is not None:
            results.append(told_by_record)
        else:
            results.append(OpResult(status, None if found is None else Version(*found)))
    return TableWritten(tuple(results), header.base_offset)
