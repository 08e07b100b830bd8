"""Opens a store whose metadata was lost, to rebuild its rows in an empty database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import find_store, migrate
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.adapters import new_block_id
from nos_ec.composition.backends import find_mark, open_objects, require_marks, settings_named
from nos_ec.core.errors import ConfigError
from nos_ec.engine.dump.rebuild_input import RebuildInput
from nos_ec.ports.metadata import Metadata
from nos_ec.settings import Settings


@contextmanager
def open_lost(settings: Settings) -> Iterator[tuple[RebuildInput, str]]:
    """Open the block store and the landing store together with an empty database, and create its tables. Yields the
    input of a rebuild and the id of the store. Raises ConfigError if the database has the metadata of a store,
    Transient."""
    with ExitStack() as stack:
        store_id = find_mark(settings)
        require_marks(settings, store_id)
        with settings_named(settings.store.url_setting):
            known, exists = find_store(settings.store.url(), settings.geometry.value())
            if exists:
                raise ConfigError(
                    f"{settings.store.url_setting} names a database that has the metadata of a store: `nos-ec check`"
                    " shows whether it fits; a rebuild needs an empty database"
                )
            if known not in (None, store_id):
                raise ConfigError(
                    f"{settings.store.url_setting} names a database of store {known}, but the blocks belong to store"
                    f" {store_id}: use an empty database"
                )
            migrate(settings.store.url())
            metadata = stack.enter_context(closing(open_metadata(settings.store.url())))
        metadata.claim_store_id(store_id)
        yield _opened(settings, metadata, store_id, stack), store_id


@contextmanager
def open_rebuilding(settings: Settings) -> Iterator[RebuildInput]:
    """Open in another process, which only reads, what `open_lost` has opened. Raises ConfigError, Transient."""
    with ExitStack() as stack:
        metadata = stack.enter_context(closing(open_metadata(settings.store.url())))
        yield _opened(settings, metadata, find_mark(settings), stack)


def _opened(settings: Settings, metadata: Metadata, store_id: str, stack: ExitStack) -> RebuildInput:
    clock = SystemClock()
    objects = open_objects(settings, stack, lambda: new_block_id(clock), store_id)
    return RebuildInput(metadata, objects.blocks, objects.landing, objects.medium, clock)
