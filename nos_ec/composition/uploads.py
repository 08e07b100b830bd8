"""Multipart uploads of an open store."""

from __future__ import annotations

from nos_ec.composition.wiring import System
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.uploads import MultipartUploads


def multipart_uploads(system: System, store: Store | None = None) -> MultipartUploads:
    """Uploads in parts, which `store`, or one of the system's, stores."""
    return MultipartUploads(store or system.store(), system.metadata, system.clock, system.new_landing_id)
