"""What every request and reply of the native protocol is made of."""

import msgspec


class Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all requests and replies."""
