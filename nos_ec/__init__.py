"""nos_ec packs small objects into full erasure-coded stripes and reclaims the space that deletes leave behind.

The names below are what a program needs to open a store and use it. They are imported when they are first asked for, so
that a command does not load what it does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nos_ec.composition.wiring import System, initialise, open_system
    from nos_ec.core.errors import (
        ConfigError,
        Conflict,
        Corrupt,
        InvalidInput,
        LeaseLost,
        NosError,
        NoSpace,
        NotFound,
        PreconditionFailed,
        QuotaExceeded,
        Transient,
    )
    from nos_ec.core.ids import ObjectKey
    from nos_ec.core.schemas import pack_request_schema
    from nos_ec.core.states import ObjectState
    from nos_ec.engine.objects.store import Store
    from nos_ec.library.object_info import ObjectInfo
    from nos_ec.library.object_reader import ObjectReader
    from nos_ec.library.object_store import ObjectStore
    from nos_ec.library.opening import open_store
    from nos_ec.settings import Settings, load_settings

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Conflict",
    "Corrupt",
    "InvalidInput",
    "LeaseLost",
    "NoSpace",
    "NosError",
    "NotFound",
    "ObjectInfo",
    "ObjectKey",
    "ObjectReader",
    "ObjectState",
    "ObjectStore",
    "PreconditionFailed",
    "QuotaExceeded",
    "Settings",
    "Store",
    "System",
    "Transient",
    "initialise",
    "load_settings",
    "open_store",
    "open_system",
    "pack_request_schema",
]

_MODULES = (
    "nos_ec.core.errors",
    "nos_ec.core.ids",
    "nos_ec.core.schemas",
    "nos_ec.core.states",
    "nos_ec.settings",
    "nos_ec.engine.objects.store",
    "nos_ec.composition.wiring",
    "nos_ec.library.object_info",
    "nos_ec.library.object_reader",
    "nos_ec.library.object_store",
    "nos_ec.library.opening",
)
"""The modules that have the names. Each loads more than those before it."""


def __getattr__(name: str) -> Any:
    """Import a name from its module (PEP 562)."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
