"""Times that nodes are told and clients rely on: shorter than an operator would have them, so that much happens in a run."""

from typing import Final

CONSUMER_BEAT_MS: Final = 200
CONSUMER_SESSION_MS: Final = 2_500
SHARE_LOCK_MS: Final = 900
SHARE_DELIVERIES: Final = 4
SHARE_LOCKS: Final = 100
SESSION_MIN_MS: Final = 200
RETENTION_CHECK_MS: Final = 250
OFFSETS_KEPT_MS: Final = 2_000
OFFSETS_CHECK_MS: Final = 200
