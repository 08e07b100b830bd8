"""The file that records which metadata store the blocks and landing copies of a folder belong to."""

from __future__ import annotations

from pathlib import Path

from nos_ec.adapters.local.files.durable import as_port_error, locked, replace_file, translated
from nos_ec.core.errors import ConfigError

OWNER_FILE = "store-id"


def claim_root(root: Path, store_id: str) -> None:
    """Record, durably, that the data in `root` belongs to the metadata with this id. Raises ConfigError when the data
    belongs to another store, NoSpace, Transient."""
    with translated(f"marking {root} as a store"), locked(root):
        if find_owner(root) is None:
            replace_file(root / OWNER_FILE, store_id.encode())
    require_root_of(root, store_id)


def require_root_of(root: Path, store_id: str) -> None:
    """Raise ConfigError unless the data in `root` belongs to the metadata with this id. Raises Transient."""
    found = find_owner(root)
    if found is None:
        raise ConfigError(
            f"{root} is not marked as a store ({OWNER_FILE}): run `nos-ec init`, or correct store.root",
            settings=("store.root",),
        )
    if found != store_id:
        raise ConfigError(
            f"{root} holds the data of another store ({found}), but the metadata belongs to store {store_id}; correct"
            " store.root or store.metadata_url",
            settings=("store.root", "store.metadata_url"),
        )


def find_owner(root: Path) -> str | None:
    """Return the id of the metadata that the data in `root` belongs to; None if it is not marked. Raises Transient."""
    try:
        return (root / OWNER_FILE).read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise as_port_error(f"checking whose store {root} is", error) from error
