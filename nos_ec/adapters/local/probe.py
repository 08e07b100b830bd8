"""Checks that a folder is usable by writing, syncing and reading a few bytes there."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from nos_ec.adapters.local.durable import NO_SPACE

_CONTENT = b"nos_ec probe"


def probe_folder(folder: Path) -> None:
    """Write to a file without a name, which disappears when it is closed, and read it back. Raises OSError. A full disk
    passes the check, because reads and deletes still work."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(_CONTENT)
            os.fsync(file.fileno())
            if os.pread(file.fileno(), len(_CONTENT) + 1, 0) != _CONTENT:
                raise OSError(errno.EIO, "a file reads back differently")
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
