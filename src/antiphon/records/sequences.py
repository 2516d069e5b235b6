"""Keys of sequences: `PREFIX-N-M`, each number with 20 digits, so that keys are in the order of their numbers."""

from typing import Final

DIGITS: Final = 20
NUMBER_MAX: Final = (1 << 64) - 1

Numbers = tuple[int, ...]


def numbers_in(key: bytes, prefix: bytes) -> Numbers | None:
    """The numbers of a key of the sequence; None: it is none of its keys."""
    rest = key[len(prefix) :]
    if not key.startswith(prefix) or not rest or len(rest) % (DIGITS + 1):
        return None
    parts = rest.split(b"-")
    if parts[0] or any(len(part) != DIGITS or not part.isdigit() for part in parts[1:]):
        return None
    return tuple(int(part) for part in parts[1:])


def key_of(prefix: bytes, numbers: Numbers) -> bytes:
    """A key of the sequence."""
    return prefix + b"".join(b"-%020d" % number for number in numbers)


def last_before(prefix: bytes) -> bytes:
    """Behind all keys of the sequence, and before all that only begin like it and go on with no number."""
    return prefix + b"-:"
