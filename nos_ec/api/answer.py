"""Types and base class shared by all answers of the API."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

HexId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
UnixMs = Annotated[int, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]

EXAMPLE_BLOCK_ID = "019a2f3c5d7e8f90a1b2c3d4e5f60718"


def example(**values: Any) -> ConfigDict:
    """Return the configuration of an answer model that has this example."""
    return ConfigDict(frozen=True, json_schema_extra={"examples": [values]})


class Answer(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(frozen=True)
