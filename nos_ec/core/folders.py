"""Folders of a listing: names with the same beginning, up to and including a delimiter, are folded into one entry.

The entries of a listing are names and folders, in the byte order of UTF-8. A folder begins with the prefix of the
listing and ends with the first delimiter after it.
"""

from __future__ import annotations


def folder_of(name: str, prefix: str, delimiter: str) -> str | None:
    """Return the folder into which a name that begins with `prefix` is folded, or None if the name is an entry itself.
    Without a delimiter nothing is folded."""
    if not delimiter or not name.startswith(prefix):
        return None
    at = name.find(delimiter, len(prefix))
    return None if at < 0 else name[: at + len(delimiter)]
