"""Makes the multipart uploads of an open store."""

from __future__ import annotations

from nos_ec.composition.wiring import System
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.uploads import MultipartUploads


def multipart_uploads(system: System, store: Store | None = None) -> MultipartUploads:
    """Return the multipart uploads of an open store. Their parts are stored by `store`, by default a new Store."""
    return MultipartUploads(store or system.store(), system.metadata, system.clock, system.new_landing_id)
