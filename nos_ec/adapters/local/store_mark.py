"""The file that says whose metadata belongs to the blocks and landing copies of a folder."""

from __future__ import annotations

from pathlib import Path

from nos_ec.adapters.local.durable import as_port_error, replace_file, translated
from nos_ec.core.errors import ConfigError

OWNER_FILE = "store-id"


def claim_root(root: Path, store_id: str, *, anew: bool) -> None:
    """Note, durably, that the data in `root` is the one that the metadata with this id knows. `anew`: whatever was
    noted before. Raises ConfigError when it is another's, NoSpace, Transient."""
    if anew or _owner(root) is None:
        with translated(f"marking {root} as a store"):
            replace_file(root / OWNER_FILE, store_id.encode())
    require_root_of(root, store_id)


def require_root_of(root: Path, store_id: str) -> None:
    """Raises ConfigError unless the data in `root` belongs to the metadata with this id; Transient."""
    found = _owner(root)
    if found is None:
        raise ConfigError(f"{root} has no mark of a store ({OWNER_FILE}); run `nos-ec init`, or correct store.root")
    if found != store_id:
        raise ConfigError(
            f"{root} holds the data of another store ({found}) than the metadata knows ({store_id}); correct store.root"
            " or store.metadata_url"
        )


def _owner(root: Path) -> str | None:
    try:
        return (root / OWNER_FILE).read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise as_port_error(f"looking whose store {root} is", error) from error
