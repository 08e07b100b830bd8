"""Checks the embedded parts of a store for `config check --connect`, without creating or upgrading anything."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from nos_ec.adapters.local.blocks.shard_folders import folder_name
from nos_ec.adapters.local.files.durable import as_port_error
from nos_ec.adapters.local.files.log_file import APPLICATION_ID, FORMAT_VERSION, partition_count, translated_errors
from nos_ec.adapters.local.files.probe import probe_folder
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import Geometry

_FORMATS = (2, FORMAT_VERSION)
"""Format 2 is upgraded when a service opens the file."""


def try_folder(folder: Path) -> None:
    """Write to the folder, or if it does not exist, to the nearest existing folder above it. The file has no name, and
    disappears afterwards. Raises PermissionError, Transient."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        probe_folder(existing)
    except PermissionError as error:
        raise PermissionError(error.errno, error.strerror, str(existing)) from error  # it named a temporary file
    except OSError as error:
        raise as_port_error(f"folder {existing}", error) from error


def missing_shards(root: Path, geometry: Geometry) -> list[str]:
    """Return the names of the shard folders that do not exist."""
    names = map(folder_name, range(geometry.k + geometry.m))
    return [name for name in names if not (root / name).is_dir()]


def look_at_log(path: Path, partitions: int) -> str | None:
    """Check the file of the message log, which is opened for reading. Returns a description of it; None if there is no
    file. Raises ConfigError, Corrupt, Transient."""
    if not path.exists():
        return None
    address = f"{path.absolute().as_uri()}?mode=ro"
    with translated_errors(path), closing(sqlite3.connect(address, uri=True)) as connection:
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if mark != APPLICATION_ID or version not in _FORMATS:
            raise ConfigError(f"message log: {path} is not a message log of this release; choose another place")
        found = partition_count(connection)
    if found != partitions:
        raise ConfigError(
            f"message log: {path} has {found} partitions, but the configuration says {partitions}; set log.partitions"
            f" to {found}",
            settings=("log.partitions",),
        )
    return f"{path}, {found} partitions"
