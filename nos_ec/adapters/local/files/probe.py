"""Checks that a folder is usable by writing, syncing and reading a few bytes there."""

from __future__ import annotations

from pathlib import Path

from nos_ec.adapters.file_system import NO_SPACE, write_error


def probe_folder(folder: Path) -> None:
    """Write to a file without a name, and read it back. Raises OSError. A full disk passes the check, because reads and
    deletes still work."""
    error = write_error(folder)
    if error is not None and error.errno not in NO_SPACE:
        raise error
