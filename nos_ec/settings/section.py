"""The base of all sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
"""In milliseconds."""


class Section(BaseModel):
    """A table of the file. Refuses keys that it does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
