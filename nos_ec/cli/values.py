"""Values of options."""

from __future__ import annotations

from nos_ec.core.errors import InvalidInput
from nos_ec.settings.values import size_of


def rate_of(text: str) -> int:
    """Bytes in a second, as --rate takes them. Raises InvalidInput."""
    try:
        rate = size_of(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise InvalidInput(f"--rate {text!r}: {error}; give bytes in a second, such as 64MiB") from error
    assert isinstance(rate, int)
    return rate
