"""Who a transactional producer is."""

from typing import NamedTuple


class Identity(NamedTuple):
    """What the batches of a producer carry."""

    producer_id: int
    epoch: int
