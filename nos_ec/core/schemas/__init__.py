"""JSON Schemas of the public formats. docs/MESSAGES.md describes them; tests compare them with the decoder."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from nos_ec.core.errors import InvalidInput

PACK_REQUEST_VERSIONS = (1, 2, 3)


def pack_request_schema(version: int) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of this version of the pack request. Raise InvalidInput for an unknown
    version."""
    if version not in PACK_REQUEST_VERSIONS:
        known = " and ".join(map(str, PACK_REQUEST_VERSIONS))
        raise InvalidInput(f"pack requests have no version {version}; there are schemas of versions {known}")
    text = resources.files(__name__).joinpath(f"pack_request.v{version}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
