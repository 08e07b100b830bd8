"""The file in each shard folder that records which shard of which store the folder is.

It is written last when a shard is created, so a folder that has it is complete. It reveals a disk of another store, and
disks that changed places. It also prevents an empty mount point from becoming a shard unless the operator asks for it.
Stores of earlier versions lack these files; `nos-ec init` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from nos_ec.adapters.file_system import make_one_folder
from nos_ec.adapters.local.blocks.shard_folders import FAN_OUT
from nos_ec.adapters.local.files.durable import replace_file
from nos_ec.core.errors import ConfigError
from nos_ec.core.killpoints import kill_point

IDENTITY_FILE = "identity.json"
_FORMAT = {"format": "nos-ec shard", "version": 1}


def make_shard(folder: Path, store_id: str, shard: int) -> None:
    """Create, durably, the folders inside a shard's folder, which must exist. Existing ones are not changed. Raises
    OSError."""
    for name in FAN_OUT:
        make_one_folder(folder / name)
    kill_point("block_store.shard_made")
    content = {**_FORMAT, "store": store_id, "shard": shard}
    replace_file(folder / IDENTITY_FILE, json.dumps(content, indent=2).encode() + b"\n")


def complete(folder: Path, *, identified: bool) -> bool:
    """Return whether all of a shard's folders exist, and its identity file if it should have one (`identified`). Raises
    OSError when the folder is not accessible."""
    return all((folder / name).is_dir() for name in FAN_OUT) and (not identified or (folder / IDENTITY_FILE).is_file())


def refuse_foreign(folder: Path, store_id: str | None, shard: int) -> None:
    """Raise ConfigError when the folder's identity file names another shard or another store, or is damaged. A folder
    without the file passes, and so does a folder that cannot be reached, because it is a lost shard."""
    path = folder / IDENTITY_FILE
    try:
        text = path.read_bytes()
    except OSError:
        return
    try:
        found = json.loads(text)
        wrong = {key: found[key] for key in _FORMAT} != _FORMAT
        owner, number = found["store"], found["shard"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): unmount the disk, or restore the file") from error
    if wrong:
        raise ConfigError(f"{path} does not have format version {_FORMAT['version']}: use the release that wrote it")
    if store_id is not None and (owner, number) != (store_id, shard):
        raise ConfigError(
            f"{folder} is shard {number} of store {owner}, not shard {shard} of store {store_id}: mount the right disk"
        )


def refuse_missing(missing: Collection[int], named: Collection[int], root: Path, m: int) -> None:
    """Raise ConfigError unless the missing shards are exactly those that the operator named, and at most m."""
    folders = ", ".join(str(root / f"shard-{shard:02d}") for shard in sorted(missing))
    if len(missing) > m:
        raise ConfigError(
            f"{len(missing)} shards are missing, more than m = {m}: blocks cannot be read without them; mount {folders}"
        )
    if unnamed := sorted(set(missing) - set(named)):
        options = " ".join(f"--new-shard {shard}" for shard in unnamed)
        raise ConfigError(
            f"shards are missing: {folders}: mount their disks, or if they are lost for good, run"
            f" `nos-ec init {options}` to recreate them empty"
        )
    if present := sorted(set(named) - set(missing)):
        raise ConfigError(f"shard {present[0]} of {root} is not missing: name only shards that are lost")
