"""Which files of a store this process has open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_files(folder: Path) -> list[Path]:
    """Return the files below `folder` that this process has open, each as often as it is open, sorted. What other tests
    have left to the garbage collector is elsewhere."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing is gone by now
            found.append(descriptor.readlink())
    return sorted(path for path in found if path.is_relative_to(folder.resolve()))
