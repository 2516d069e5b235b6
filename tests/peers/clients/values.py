"""Values of random bytes: what a codec cannot make smaller, and no two alike."""

import os
from typing import Final

POOL_BYTES: Final = 32 * 1024 * 1024
VALUES_MAX: Final = 100_000


def random_values(value_bytes: int) -> list[bytes]:
    """So many that a batch holds none of them twice; at most 32 MiB and 100,000 of them."""
    count = min(VALUES_MAX, POOL_BYTES // value_bytes)
    pool = os.urandom(count * value_bytes)
    return [pool[at : at + value_bytes] for at in range(0, len(pool), value_bytes)]
