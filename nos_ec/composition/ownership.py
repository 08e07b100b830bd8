"""Checks that metadata, data and devices of the landing log belong to the same store, and the metadata of two cells
too. Changes nothing."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from nos_ec.adapters.local.store_mark import find_owner
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import find_store
from nos_ec.composition.backends import OF_CONNECTION, for_each_pool, open_objects, rados_options, settings_named
from nos_ec.composition.landing import check_devices
from nos_ec.core.errors import ConfigError
from nos_ec.core.ids import BlockId
from nos_ec.ports.metadata import Metadata, Notes
from nos_ec.settings import Settings

if TYPE_CHECKING:
    from nos_ec.adapters.rados.client.pool import Pool

CELL_NOTE = "cell"
"""Name of the note, in the database of each cell, with the name of the cell."""
DIRECTORY_NOTE = "directory"
"""Name of the note, in the database of each cell, with the id of the store that has its directory."""
NEW_METADATA = (
    "the metadata is new and empty: restore the metadata from a backup, write its rows again with `nos-ec metadata"
    " rebuild` (docs/RUNBOOKS.md), or set the right store.metadata_url; to start from scratch, set another store.root"
    " (with Ceph: another ceph.namespace) or remove the old data"
)
"""Advice for the case that data exists, but its metadata does not."""
OTHER_CELL_READ_S = 10
"""How long a statement in the database of another cell may take. All of them look up single rows, and the loops of the
daemon wait for them."""


def open_other_cell(settings: Settings, own: Notes) -> Metadata:
    """Open the metadata of another cell for a process of the cell that has `own`, which reads there and changes
    nothing but the places in the directory. It does not find the documents of a bucket that was moved away. A read-only
    server, whose data may be old, is refused. Statements may take OTHER_CELL_READ_S. Raises ConfigError unless it is
    the cell of that name of the same store, also if its database was rebuilt and the directory has not been told, and
    Transient."""
    with settings_named(settings.store.url_setting):
        opened = open_metadata(settings.store.url(), read_s=OTHER_CELL_READ_S)
    try:
        directory = own.note(DIRECTORY_NOTE)
        if opened.note(CELL_NOTE) != settings.cell or directory is None or opened.note(DIRECTORY_NOTE) != directory:
            raise ConfigError(
                f"the database at {settings.store.url_setting} of cell {settings.cell} is not that of this cell of the"
                " store; correct it, or run `nos-ec cells rebuild-directory` if it was rebuilt"
            )
    except BaseException:
        opened.close()
        raise
    opened.obey_moves(lambda _: None)
    return opened


def refuse_other_stores(settings: Settings) -> None:
    """Raise ConfigError unless metadata, data and devices of the landing log belong to one store, or do not exist yet.
    Changes nothing: if marks and schema were changed for the metadata of another store, the right metadata would be
    refused from then on."""
    known: tuple[str | None, bool] | None = None
    while True:
        with settings_named(settings.store.url_setting):
            found = find_store(settings.store.url(), settings.geometry.value())
        try:
            _compare(settings, *found)
        except ConfigError:
            if found == known:
                raise
            known = found  # another process may have created the store meanwhile
        else:
            return


def _compare(settings: Settings, store_id: str | None, exists: bool) -> None:
    _check_owners(settings, store_id, is_new=not exists)
    if not exists:
        refuse_data_without_metadata(settings, created=False)
    with settings_named("landing.devices", "store.metadata_url"):
        check_devices(settings, store_id if exists else None)


def _check_owners(settings: Settings, store_id: str | None, *, is_new: bool) -> None:
    """Compare the marks of the block store and the landing store, which may not exist yet, with the metadata. Raises
    ConfigError as `compare_owner` does, Transient."""
    if settings.store.backend == "local":
        root = settings.store.root
        with settings_named("store.root", "store.metadata_url"):
            compare_owner(str(root), find_owner(root), store_id, is_new=is_new)
        return
    from nos_ec.adapters.rados import store_mark
    from nos_ec.adapters.rados.client.cluster import RadosCluster

    def compare(pool: Pool) -> None:
        compare_owner(f"Ceph pool {pool.name}", store_mark.find_owner(pool), store_id, is_new=is_new)

    with settings_named(*OF_CONNECTION):
        cluster = RadosCluster(rados_options(settings))
    with cluster:
        for_each_pool(settings, cluster, compare)


def compare_owner(where: str, owner: str | None, store_id: str | None, *, is_new: bool) -> None:
    """Raise ConfigError unless the data at `where`, marked with store `owner`, belongs to the metadata of store
    `store_id`. Data without a mark belongs to new metadata, and to metadata without an id."""
    if owner == store_id or (owner is None and is_new):
        return
    if is_new:
        raise ConfigError(f"{where} holds the data of store {owner}, but {NEW_METADATA}")
    raise ConfigError(
        f"{where} holds {f'another store ({owner})' if owner else 'no store'}, but the metadata belongs to store"
        f" {store_id or '(without an id)'}: correct the place or the metadata URL"
    )


def refuse_data_without_metadata(settings: Settings, *, created: bool) -> None:
    """Raise ConfigError if data exists: new metadata would hide old data, and look like a healthy store. `created` says
    whether the block store and the landing store were created; otherwise they may be missing."""
    with ExitStack() as stack:
        try:
            objects = open_objects(settings, stack, lambda: BlockId(bytes(16)), None)
        except ConfigError:
            if created:
                raise
            return
        block_id = next(objects.blocks.list_blocks(), None)
        landing_id = next(objects.landing.list_ids(), None)
        segment = None if objects.medium is None else next(objects.medium.segments(), None)
    found = block_id or landing_id or segment
    if found is not None:
        what = "block" if block_id else "landing copy" if landing_id else "landing segment"
        raise ConfigError(
            f"{what} {found.hex()} exists, but {NEW_METADATA}",
            block_id=block_id,
            landing_id=landing_id if block_id is None else None,
            settings=("store.metadata_url", "store.root", "ceph.namespace"),
        )
