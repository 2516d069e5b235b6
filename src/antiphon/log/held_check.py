"""What was found when a replica was opened, beside what its node knows that it had: is anything missing?"""

from antiphon.log.disk import Disk
from antiphon.log.hard_state import HardState
from antiphon.log.inventory import Held, Holding
from antiphon.log.recovery import FORGOTTEN, DamageReport, save_damage
from antiphon.records.entry_id import EntryId


def compare(
    disk: Disk,
    directory: str,
    end: EntryId,
    state: HardState,
    held: Held,
    damaged: DamageReport | None,
    *,
    made: bool,
    promises: bool,
    hint_binds: bool,
) -> DamageReport | None:
    """Compare what was found with what this replica is known to have had, and bring the inventory in step with it.

    Args:
        disk: where the replica is.
        directory: of the replica.
        end: of the log.
        state: its promise, which is raised where it is lost to what the log shows.
        held: what the node's inventory says.
        damaged: what is known to be damaged already.
        made: the directory was not there.
        promises: terms are promised before their entries are taken.
        hint_binds: the high watermark that was noted was never above what was synced.

    Returns:
        The damage of the log, with what was found to be missing; it is marked, durably.
    """
    loss = _loss(directory, end, state, held.known, made=made, promises=promises, hint_binds=hint_binds)
    if loss is None:
        held.found(state.term, end)
    else:
        if damaged is None or (loss.forgot and not damaged.forgot):
            damaged = loss
            save_damage(disk, directory, loss)
        held.set(state.term, end)  # less is here from now on; the marker tells of it
    if damaged is not None and damaged.forgot:
        state.forget(end.term)
    return damaged


def _loss(
    path: str,
    end: EntryId,
    state: HardState,
    known: Holding | None,
    *,
    made: bool,
    promises: bool,
    hint_binds: bool,
) -> DamageReport | None:
    held = (
        "" if known is None else f"this node had promised term {known.term} and had a log up to {known.end}, "
    )
    if not state.readable:
        return DamageReport(end.offset, path, FORGOTTEN, "the file of the term and vote cannot be read")
    if known is not None and made:
        return DamageReport(end.offset, path, FORGOTTEN, f"{held}and its directory is gone")
    if (known is not None and state.term < known.term) or (promises and state.term < end.term):
        reason = f"{held}and what is found was promised up to term {state.term} only, with a log up to {end}"
        return DamageReport(end.offset, path, FORGOTTEN, reason)
    if known is not None and end < known.end:
        return DamageReport(end.offset, path, 0, f"{held}and what is found ends at {end}")
    if hint_binds and end.offset < state.high_watermark:
        reason = (
            f"everything below {state.high_watermark} was durable and committed, and the log ends at {end}"
        )
        return DamageReport(end.offset, path, 0, reason)
    return None
