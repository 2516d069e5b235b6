"""Variable-length numbers as records hold them: zigzag, seven bits a byte, the lowest first."""

from typing import Final

BYTES_MAX: Final = 10  # of one number


def varint(value: int) -> bytes:
    """A number that is not negative."""
    rest = value << 1
    made = bytearray()
    while rest >= 0x80:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def take_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Undo `varint`: the number, and where it ends. IndexError where there is none."""
    found = 0
    for place in range(BYTES_MAX):
        byte = data[at + place]
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return found >> 1, at + place + 1
    raise IndexError("a number that does not end")
