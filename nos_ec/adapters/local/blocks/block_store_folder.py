"""The folder of an embedded block store: how it is created, and how it is recognised."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path

from nos_ec.adapters.local.blocks import block_locks
from nos_ec.adapters.local.blocks.block_locks import BlockLocks
from nos_ec.adapters.local.blocks.shard_folders import FAN_OUT, folder_name
from nos_ec.adapters.local.blocks.shard_identity import complete, make_shard, refuse_foreign, refuse_missing
from nos_ec.adapters.local.files.durable import (
    as_port_error,
    locked,
    make_folder,
    make_folders,
    replace_file,
    translated,
)
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import Geometry

_STORE_FILE = "store.json"
_FORMAT = {"format": "nos-ec local block store", "version": 1}


def initialise(root: Path, geometry: Geometry, new_shards: Collection[int]) -> None:
    """Create the folders of a store, durably. Files that earlier versions did not write are added to an existing store.

    `new_shards` are shards of an existing store that are lost for good and are to be recreated empty. Raises
    ConfigError when other shards are missing, more than m are missing, or a named one is not missing; when a folder
    belongs to another shard or another store; and when the existing store has another or an unknown geometry. Raises
    NoSpace, Transient. If several processes call this, one creates the store and the others wait for it.
    """
    with translated(f"block store {root}"):
        make_folder(root)
        with locked(root):
            _initialise(root, geometry, new_shards)


def _initialise(root: Path, geometry: Geometry, new_shards: Collection[int]) -> None:
    """Create the folders as `initialise` does, with the folder locked. Also raises OSError."""
    shards = range(geometry.k + geometry.m)
    if unknown := sorted(set(new_shards) - set(shards)):
        raise ConfigError(f"there is no shard {unknown[0]}: {root} has shards 0 to {shards[-1]}")
    to_make: Collection[int] = shards
    store_id = None
    if existing := (root / _STORE_FILE).exists():
        store_id = check_store(root, geometry)
        identified = store_id is not None
        missing = [n for n in shards if not _complete(root / folder_name(n), identified=identified)]
        for shard in shards:
            refuse_foreign(root / folder_name(shard), store_id, shard)
        refuse_missing(missing, new_shards, root, geometry.m)
        to_make = missing if identified else shards
    elif new_shards:
        raise ConfigError(f"{root} is not a block store yet: run `nos-ec init` without --new-shard")
    elif any(root.glob(f"shard-*/[{FAN_OUT}]/*")):
        raise ConfigError(f"{root} holds blocks, but {_STORE_FILE} with their geometry is lost: restore the file")
    make_folders(root, [*map(folder_name, shards), block_locks.FOLDER])
    new_id = store_id or os.urandom(16).hex()
    for shard in to_make:
        make_shard(root / folder_name(shard), new_id, shard)
    BlockLocks(root).make()
    if not existing or store_id is None:
        content = json.dumps({**_FORMAT, "id": new_id, "geometry": asdict(geometry)}, indent=2)
        replace_file(root / _STORE_FILE, content.encode() + b"\n")


def _complete(folder: Path, *, identified: bool) -> bool:
    with translated(f"shard folder {folder}"):  # an unreadable shard is not a lost one
        return complete(folder, identified=identified)


def check_store(root: Path, geometry: Geometry) -> str | None:
    """Return the store's id; None if an earlier version created the store. Raises ConfigError unless `root` holds a
    store of this geometry, Transient."""
    path = root / _STORE_FILE
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{root} is not a block store: run `nos-ec init` to create one, or mount its disk") from error
    except OSError as error:
        raise as_port_error(f"block store {path}", error) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}): restore it from another copy of this store's settings"
        ) from error
    stored = content.get("geometry") if isinstance(content, dict) else None
    if stored is None or {key: content.get(key) for key in _FORMAT} != _FORMAT:
        raise ConfigError(f"{path} does not have format version {_FORMAT['version']}: use the release that wrote it")
    if stored != asdict(geometry):
        raise ConfigError(
            f"block store {root} has the geometry {_shown(stored)}, but the configuration says"
            f" {_shown(asdict(geometry))}: configure the store's geometry, or initialise a new store elsewhere"
        )
    store_id = content.get("id")
    return store_id if isinstance(store_id, str) else None


def _shown(geometry: Mapping[str, int]) -> str:
    return " ".join(f"{key}={value}" for key, value in geometry.items())
