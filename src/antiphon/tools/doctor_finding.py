"""What the doctor finds."""

from typing import Any, Literal, TypeAlias

Finding: TypeAlias = dict[str, Any]
"""`level` (ok, note, wrong), `what` and what to `do` about it."""
Level: TypeAlias = Literal["ok", "note", "wrong"]


def finding(level: Level, what: str, do: str = "") -> Finding:
    """One finding."""
    return {"level": level, "what": what, "do": do}
