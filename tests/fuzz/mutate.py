"""Changes bytes as a fuzzer does, from a random source: the same source makes the same bytes.

It knows what formats here are made of: numbers with limits, lengths, variable-length numbers, deep nesting.
"""

import struct
from random import Random
from typing import Final

INPUT_BYTES_MAX: Final = 16 * 1024
STEPS_MAX: Final = 4

NUMBERS: Final = tuple(
    struct.pack(order + kind, value)
    for kind, bits in (("b", 8), ("h", 16), ("i", 32), ("q", 64))
    for value in (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2 ** (bits // 2))
    for order in "><"
)
PIECES: Final = (
    b"\xff\xff\xff\xff\x0f",  # varints: the largest of 32 and 64 bits, and one that does not end
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80" * 11,
    b"\xc0\x80",  # not UTF-8
    b"\xed\xa0\x80",
    b"\x00",
    b"\x91" * 3000,  # msgpack: arrays in arrays; then maps in maps
    b"\x81\x00" * 1500,
    b"\xdd\xff\xff\xff\xff",  # an array, a map, a text and bytes of 4 G
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # infinity
    b"[" * 3000,
    b'{"a":' * 1500,
    b"1e999",
    b"null",
    b"-1",
)


def mutated(data: bytes, rng: Random, others: "tuple[bytes, ...]" = ()) -> bytes:
    """`data`, changed in one to four places; `others` are inputs to take pieces from."""
    made = bytearray(data)
    for _ in range(rng.randint(1, STEPS_MAX)):
        _step(made, rng, others)
    return bytes(made[:INPUT_BYTES_MAX])


def _step(made: bytearray, rng: Random, others: "tuple[bytes, ...]") -> None:
    at = rng.randint(0, len(made))
    kind = rng.randrange(9)
    if kind == 0 and made:  # flip a bit
        place = rng.randrange(len(made))
        made[place] ^= 1 << rng.randrange(8)
    elif kind == 1 and made:
        made[rng.randrange(len(made))] = rng.randrange(256)
    elif kind == 2:  # write a number over what is there
        number = rng.choice(NUMBERS)
        made[at : at + len(number)] = number
    elif kind == 3:  # count up or down by a little
        width = rng.choice((1, 2, 4))
        if at + width <= len(made):
            value = int.from_bytes(made[at : at + width], "big") + rng.randint(-9, 9)
            made[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
    elif kind == 4:  # leave something out
        del made[at : at + rng.choice((1, 2, 4, 8, rng.randint(1, 64)))]
    elif kind == 5:  # say something twice
        piece = bytes(made[at : at + rng.randint(1, 64)])
        made[at:at] = piece * rng.choice((1, 1, 2, 16))
    elif kind == 6:
        made[at:at] = rng.choice(PIECES)
    elif kind == 7:
        made[at:at] = rng.randbytes(rng.randint(1, 16))
    elif others:  # a piece of another input
        other = rng.choice(others)
        first = rng.randint(0, len(other))
        made[at : at + rng.choice((0, 64))] = other[first : first + rng.randint(1, 256)]
