"""What retention may remove: whole segments, the oldest first, never above the high watermark."""

from collections.abc import Sequence

from antiphon.log.config import LogConfig


def retained_from(
    segments: Sequence[tuple[int, int, int]],
    *,
    now_ms: int,
    config: LogConfig,
    limit_offset: int,
    log_start: int,
    deleted_before: int = 0,
) -> int:
    """The log start that retention asks for; at least `log_start`.

    Args:
        segments: (next offset, bytes, largest timestamp in ms) of each, oldest first. The last one is still written to; it
            may go by age, when it is old and all of it is below the limit, but not by size.
        now_ms: the time, ms since 1970 UTC.
        config: `retention_ms` and `retention_bytes`; -1 keeps for ever.
        limit_offset: nothing at or above this offset goes (high watermark, durable end).
        log_start: where the log starts now.
        deleted_before: what is before it, nobody is shown any more.
    """
    start = log_start
    total_bytes = sum(size for _, size, _ in segments)
    for number, (next_offset, size_bytes, max_timestamp) in enumerate(segments):
        is_last = number == len(segments) - 1
        too_old = config.retention_ms >= 0 and max_timestamp < now_ms - config.retention_ms
        too_much = (
            config.retention_bytes >= 0 and total_bytes - size_bytes >= config.retention_bytes and not is_last
        )
        is_deleted = next_offset <= deleted_before
        if next_offset > limit_offset or not (too_old or too_much or is_deleted):
            break
        start = max(start, next_offset)
        total_bytes -= size_bytes
    return start
