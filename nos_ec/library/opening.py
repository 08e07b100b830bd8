"""Opening a store as a library, whose log messages go to the standard `logging` of the program."""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.cells import open_cells
from nos_ec.composition.wiring import initialise, open_system
from nos_ec.core.errors import ConfigError
from nos_ec.library.object_store import ObjectStore
from nos_ec.settings import Settings, load_settings

CONFIG_SUFFIX = ".toml"


def open_store(where: Settings | str | os.PathLike[str], *, create: bool = False) -> ObjectStore:
    """Open a store. Close the ObjectStore that is returned, or use it in a `with` statement.

    where: settings, the path of a configuration file (`*.toml`), or the folder of an embedded store with the default
    settings. The environment is not read; `load_settings(path, os.environ)` reads it.
    create: initialise the store first, unless it exists.

    Log messages go to the standard `logging`, unless the program has configured structlog. Raises ConfigError when the
    store is missing or does not match, Transient when one of its servers cannot be reached.
    """
    settings = _settings(where)
    log_through_logging()
    if create and settings.cells:
        raise ConfigError("create=True does not create a store of several cells; run `nos-ec init`")
    if create:
        initialise(settings)
    elif isinstance(where, str | os.PathLike):
        _require_existing(Path(where))
    return ObjectStore(open_cells(settings, SystemClock()) if settings.cells else open_system(settings))


def _require_existing(path: Path) -> None:
    try:
        exists = path.exists()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; check owner and mode of its folders") from error
    if not exists:
        raise ConfigError(f"{path} does not exist; open_store(..., create=True) makes a store in a new folder")


def _settings(where: Settings | str | os.PathLike[str]) -> Settings:
    if isinstance(where, Settings):
        return where
    path = Path(where)
    if path.suffix == CONFIG_SUFFIX:
        return load_settings(path, {})
    return load_settings(None, {"NOS_EC_STORE__ROOT": str(path)})


def log_through_logging() -> None:
    """Send log messages to the standard `logging`, to loggers named after the modules of this package.

    Does nothing when the program has configured structlog. Without this, structlog would print to standard output,
    which belongs to the program.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
