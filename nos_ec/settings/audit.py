"""The section [audit]."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from nos_ec.settings.section import Section
from nos_ec.settings.values import NonEmptyPath, Size


class AuditSettings(Section):
    """The audit trail, which records what was deleted or replaced, when and by which process (OPERATIONS.md)."""

    folder: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="Folder of the trail, which all processes of a host may share. If unset: audit in store.root; on"
        " Ceph, no trail is kept. A relative path in a file starts at the file's folder.",
    )
    size_bytes_max: Size = Field(
        default=256 << 20,
        ge=0,
        le=1 << 40,
        description="Maximum size of the folder; beyond it, and after a year, the oldest entries are deleted. A deleted"
        " landing copy takes some 200 bytes. 0: no trail.",
    )

    def is_missing(self, backend: str) -> bool:
        """Return whether no trail is kept although it was not turned off."""
        return bool(self.size_bytes_max) and self.folder is None and backend != "local"

    def folder_in(self, root: Path, backend: str) -> Path | None:
        """Return the folder of the trail for a store with this root; None if no trail is kept."""
        if not self.size_bytes_max or self.is_missing(backend):
            return None
        return self.folder or root / "audit"
