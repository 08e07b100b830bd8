"""Formats times, numbers, sizes and names for people."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def span(ms: int) -> str:
    """Return a duration in its two largest units: '3 min 20 s', '2 days 4 h', '700 ms', '0 s'."""
    if 0 < ms < 1000:
        return f"{ms} ms"
    rest = max(0, ms)
    parts: list[str] = []
    for unit, unit_ms in _UNITS:
        count, rest = divmod(rest, unit_ms)
        if count or parts:
            parts.append(f"{count} {unit}{'s' if unit == 'day' and count != 1 else ''}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


def moment(ms: int) -> str:
    """Return a moment (Unix milliseconds) in ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def when(ms: int, now_ms: int) -> str:
    """Return 'in 3 min 20 s (2026-01-31T12:00:00+00:00)', or '3 min 20 s ago (...)'."""
    return f"in {span(ms - now_ms)} ({moment(ms)})" if ms > now_ms else f"{span(now_ms - ms)} ago ({moment(ms)})"


def printable(text: str) -> str:
    """Return a name with its control characters, marks of writing direction and unusual spaces as Python's escapes.
    They could end a line, or garble or control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def shortened(text: str, chars_max: int) -> str:
    """Return at most `chars_max` characters of a text, with "..." at the end if it is longer."""
    return text if len(text) <= chars_max else text[: chars_max - 3] + "..."


def count_text(count: float, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: '1 object', '2,000 objects'."""
    return f"{count:,.0f} {noun if count == 1 else plural or noun + 's'}"


def size_text(size_bytes: float) -> str:
    """Return a number of bytes as '12.3 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} PiB"
