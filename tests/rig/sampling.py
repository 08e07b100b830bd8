"""Some tests do a part of what they could. `make test-all` does all of it; CONTRIBUTING.md lists what that is."""

from __future__ import annotations

import os
from typing import TypeVar

IS_WHOLE = os.environ.get("NOS_EC_DEV_WHOLE", "") == "1"

_T = TypeVar("_T")


def sampled(part: _T, whole: _T) -> _T:
    """Return `part`, or `whole` when everything was asked for (NOS_EC_DEV_WHOLE=1)."""
    return whole if IS_WHOLE else part
