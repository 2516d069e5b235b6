"""The order in which Oxia's clients see the keys of a table: `natural`, by bytes, or `hierarchical`, by depth first.

Hierarchical, a key is compared by its *sort key*: the number of its slashes (two bytes, big-endian), then the key with each
slash as 0xFF. So keys of one depth stand together, and a key is right before what lies below it at the next depth. A key
that ends with two slashes counts one less: `/a//` ends the children of `/a`, which begin at `/a/`. What is deeper than
`DEPTH_MAX` counts as that deep.

Only text (UTF-8) has a place in that order: there 0xFF cannot occur, so a sort key says which key it is of.
"""

from collections.abc import Mapping
from typing import Final

SETTING: Final = "key.sorting"
NATURAL: Final = "natural"
HIERARCHICAL: Final = "hierarchical"
SORTINGS: Final = (NATURAL, HIERARCHICAL)
DEPTH_MAX: Final = (1 << 15) - 1
_SLASH: Final = b"/"
_LAST: Final = b"\xff"
_DEPTH_BYTES: Final = 2


def is_hierarchical(config: Mapping[str, str]) -> bool:
    """Does a table with these settings have the hierarchical order?"""
    return config.get(SETTING) == HIERARCHICAL


def is_text(key: bytes) -> bool:
    """Has a key a place in the hierarchical order, and can Oxia's clients read it?"""
    if key.isascii():
        return True
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def sort_key(key: bytes) -> bytes:
    """What a key is compared by, hierarchically."""
    depth = key.count(_SLASH)
    if not depth:
        return b"\x00\x00" + key
    if key.endswith(b"//"):
        depth -= 1
    return min(depth, DEPTH_MAX).to_bytes(_DEPTH_BYTES, "big") + key.replace(_SLASH, _LAST)


def key_of(sorted_by: bytes) -> bytes:
    """The key that has this sort key."""
    return sorted_by[_DEPTH_BYTES:].replace(_LAST, _SLASH)
