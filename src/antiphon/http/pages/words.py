"""How pages write numbers, times and bytes. What clients wrote is shown so that it cannot pass for anything else."""

import base64
import json
from datetime import UTC, datetime
from typing import Final

from antiphon import system
from antiphon.errors import InvalidRequestError

UNKNOWN: Final = "\N{EN DASH}"
SHOWN_BYTES: Final = 2_048  # of a key or value in a list
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
PASSED: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
FORMATS: Final = ("auto", "json", "text", "hex")
HEX_LINE: Final = 16
KEY_FORMS: Final = ("text", "hex", "base64")
KEY_TEXT_MAX: Final = 8_192


def number(value: float | None) -> str:
    """With thin spaces between thousands; a dash for what is not known."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def size(value: float | None) -> str:
    """Bytes, in a unit that fits."""
    if value is None:
        return UNKNOWN
    unit = 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return (
        f"{value:.0f}\N{NARROW NO-BREAK SPACE}{UNITS[unit]}"
        if unit == 0 or value >= 100
        else (f"{value:.1f}\N{NARROW NO-BREAK SPACE}{UNITS[unit]}")
    )


def lasted(seconds: float) -> str:
    """A duration, in the largest unit of which there is more than one."""
    unit_s, unit = next((one for one in PASSED if seconds >= 2 * one[0]), PASSED[-1])
    return f"{max(0, int(seconds // unit_s))}\N{NARROW NO-BREAK SPACE}{unit}"


def seconds(value: float) -> str:
    """A short duration, to a tenth of a second."""
    return f"{value:.1f}\N{NARROW NO-BREAK SPACE}s"


def ago(at_ms: int) -> str:
    """How long ago a time is."""
    return f"{lasted(system.wall_ms() / 1000 - at_ms / 1000)} ago"


def moment(at_ms: int) -> str:
    """A time in UTC, to the millisecond; what is no time stays a number."""
    try:
        when = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return f"{when:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}Z"


def instant(text: str) -> int:
    """The ms since 1970 of a time that somebody wrote; UTC unless it says otherwise. Raises InvalidRequestError."""
    try:
        when = datetime.fromisoformat(text)
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return int(when.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidRequestError(f"{text!r} is no time: write 2026-01-31T12:00 (UTC)") from None


def key_bytes(text: str, form: str) -> bytes:
    """The key that somebody wrote, as text, hexadecimal or Base64. Raises InvalidRequestError."""
    if len(text) > KEY_TEXT_MAX:
        raise InvalidRequestError(
            f"a key that is looked for has at most {KEY_TEXT_MAX} letters, and this has {len(text)}"
        )
    try:
        if form == "hex":
            return bytes.fromhex(text)
        if form == "base64":
            return base64.b64decode(text.strip().replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        raise InvalidRequestError(
            f"{safe(text[:100])!r} is no {form}: write 6b31 (hex) or azE= (base64) for k1"
        ) from None
    return text.encode("utf-8", "surrogateescape")


def safe(text: str) -> str:
    """Text without what changes how its neighbours are read: control characters and changes of direction are escaped."""
    return "".join(one if one.isprintable() or one in "\n\t" else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def hexdump(data: bytes) -> str:
    """Offset, bytes, and what of them is ASCII."""
    lines = []
    for at in range(0, len(data), HEX_LINE):
        line = data[at : at + HEX_LINE]
        shown = "".join(chr(one) if 32 <= one < 127 else "." for one in line)
        lines.append(f"{at:06x}  {line.hex(' '):<{3 * HEX_LINE}} {shown}")
    return "\n".join(lines)


def shown(
    data: bytes | None, how: str = "auto", limit: int = SHOWN_BYTES, indent: int | None = None
) -> dict[str, object]:
    """The beginning of a key or value: `text`, how it is shown, its length, and whether that is less than all."""
    if data is None:
        return {"text": "", "how": "null", "bytes": 0, "cut": False}
    part = data[:limit]
    cut = len(data) > limit
    kind, text = _rendered(part, how, indent, cut=cut)
    return {"text": text, "how": kind, "bytes": len(data), "cut": cut}


def _rendered(part: bytes, how: str, indent: int | None, *, cut: bool) -> tuple[str, str]:
    if how == "hex":
        return "hex", hexdump(part)
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(part) - 3:
            return (
                ("text", safe(part.decode("utf-8", "replace"))) if how == "text" else ("hex", hexdump(part))
            )
        text = part[: error.start].decode()
    if how in {"auto", "json"} and not cut and text[:1] in {"{", "["}:
        try:
            return "json", safe(json.dumps(json.loads(text), ensure_ascii=False, indent=indent))
        except (ValueError, RecursionError):
            pass
    if how == "auto" and sum(not one.isprintable() and one not in "\n\t\r" for one in text) > len(text) // 8:
        return "hex", hexdump(part)
    return "text", safe(text)
