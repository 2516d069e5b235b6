"""Pieces of JSON for whole columns at a time: strings with escapes, base64, and values that are JSON already."""

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antiphon.errors import InvalidRequestError

_BASE64: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])


def utf8_text(column: pa.Array) -> pa.Array:
    """Binary as text. Raises InvalidRequestError, whose details name the first `row` that is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        low, high = 0, len(column)  # the first bad row is in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                column.slice(low, middle - low).cast(pa.string())
                low = middle
            except pa.ArrowInvalid:
                high = middle
        raise InvalidRequestError("a key or value is not UTF-8 text", row=low) from None


def quoted(text: pa.Array) -> pa.Array:
    """Strings as JSON writes them; null stays null."""
    out = pc.replace_substring(text, "\\", "\\\\")
    out = pc.replace_substring(out, '"', '\\"')
    if pc.any(pc.match_substring_regex(out, r"[\x00-\x1f]")).as_py():
        for code in range(0x20):
            character = chr(code)
            out = pc.replace_substring(out, character, _SHORT.get(character, f"\\u{code:04x}"))
    return pc.binary_join_element_wise('"', out, '"', "")


def base64_text(column: pa.Array) -> pa.Array:
    """Binary as base64 with padding; null stays null."""
    filled = pc.fill_null(column, b"")
    lengths = np.asarray(pc.binary_length(filled)).astype(np.int64)
    groups = (lengths + 2) // 3
    begin = 3 * (np.cumsum(groups) - groups)  # of each value in a buffer where all are padded to threes
    padded = np.zeros(int(3 * groups.sum()), np.uint8)
    total = int(lengths.sum())
    source = np.cumsum(lengths) - lengths
    padded[np.arange(total) + np.repeat(begin - source, lengths)] = _bytes_of(filled, total)
    triples = padded.reshape(-1, 3).astype(np.uint32)
    bits = (triples[:, 0] << 16) | (triples[:, 1] << 8) | triples[:, 2]
    text = _BASE64[np.stack([(bits >> shift) & 63 for shift in (18, 12, 6, 0)], axis=1)].reshape(-1)
    ends = 4 * np.cumsum(groups)
    text[ends[lengths % 3 != 0] - 1] = ord("=")
    text[ends[lengths % 3 == 1] - 2] = ord("=")
    offsets = np.zeros(len(column) + 1, np.int32)
    offsets[1:] = ends
    found = pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.string()))


def _bytes_of(column: Any, total: int) -> Any:
    """All bytes of a binary column one after the other."""
    _, offsets, data = column.buffers()
    if data is None or not total:
        return np.zeros(0, np.uint8)
    first = np.frombuffer(offsets, np.int32)[column.offset]
    return np.frombuffer(data, np.uint8)[first : first + total]


def valid_json(text: pa.Array) -> pa.Array:
    """The texts as they are, when each is one JSON value; null stays null.

    Raises InvalidRequestError, whose details name a `row` that is not.
    """
    trimmed = pc.utf8_trim(pc.drop_null(text), characters=" \t\r\n")
    if not len(trimmed) or _all_json(trimmed):
        return text
    rows = np.flatnonzero(np.asarray(pc.is_valid(text).to_numpy(zero_copy_only=False), bool))
    low, high = 0, len(trimmed)
    while high - low > 1:
        middle = (low + high) // 2
        if _all_json(trimmed.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    raise InvalidRequestError("the value is not JSON", row=int(rows[low]))


def _all_json(trimmed: pa.Array) -> bool:
    """Is each a JSON value? All are read at once as one array; each has to be an element of its own, of its own length."""
    one_list = pa.ListArray.from_arrays(pa.array([0, len(trimmed)], pa.int32()), trimmed)
    joined = pc.binary_join(one_list, ",")[0].as_buffer()
    try:
        found = _raws.decode(b"[" + joined + b"]")
    except (msgspec.DecodeError, RecursionError):
        return False
    lengths = np.fromiter(map(len, map(bytes, found)), np.int64, len(found))
    return np.array_equal(lengths, np.asarray(pc.binary_length(trimmed)).astype(np.int64))
