"""The section [trash]."""

from __future__ import annotations

from pydantic import Field

from nos_ec.settings.section import DAY, Section
from nos_ec.settings.values import Count


class TrashSettings(Section):
    """Deleted objects that can be brought back."""

    keep_days: Count = Field(
        default=0,
        ge=0,
        le=365,
        description="Days for which a deleted object stays in the trash, from which `nos-ec undelete` brings it back;"
        " 0 for no trash. It occupies space until then. A change applies to later deletes only. Must be the same for"
        " all processes that delete.",
    )

    @property
    def keep_ms(self) -> int:
        """keep_days in milliseconds."""
        return self.keep_days * DAY
