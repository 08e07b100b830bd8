"""The base class of all sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
"""Durations in milliseconds."""


class Section(BaseModel):
    """A section of the settings file. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
