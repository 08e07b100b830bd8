"""Masks passwords in settings, so that they can be shown."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote_plus

from nos_ec.settings.sections import Settings

MASK = "**********"
_SECRET_WORDS = ("pass", "pw", "secret", "token", "credential")
_PRIVATE_KEYS = ("key.pem", "passphrase")
_QUERY_PATTERN = re.compile(r"([\w.%+-]+=[^&]*)?(&[\w.%+-]+=[^&]*)*")


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Return all settings as JSON values, by section and key, and those of each cell. In the metadata URL, only
    passwords are masked."""
    data = _shown(settings)
    if settings.cells:
        shown = {name: _shown(cell.settings) | {"weight": cell.weight} for name, cell in settings.cells.items()}
        data["cells"] = shown
    return data


def _shown(settings: Settings) -> dict[str, Any]:
    data = settings.model_dump(mode="json")
    if settings.store.metadata_url is not None:
        data["store"]["metadata_url"] = shown_url(settings.store.url())
    for key in data["kafka"]["options"]:
        if any(word in key for word in _PRIVATE_KEYS):
            data["kafka"]["options"][key] = MASK
    return data


def shown_url(url: str) -> str:
    """Return a database URL with its passwords masked: the password after the user, and passwords among the options.

    A password may contain characters that should have been percent-encoded. So if its end is ambiguous, everything up
    to the last `@` is masked, unless that `@` is in the value of an option.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return MASK
    place, mark, query = _split_query(rest)
    user_and_password, at, host = place.rpartition("@")
    user, colon, _ = user_and_password.partition(":")
    shown_user = f"{user}{colon}{MASK if colon else ''}{at}"
    options = "&".join(_shown_option(option) for option in query.split("&")) if mark else ""
    return f"{scheme}://{shown_user}{host}{mark}{options}"


def _split_query(rest: str) -> tuple[str, str, str]:
    """Split at the first `?` after which only options follow, into (text before it, "?", options)."""
    for found in re.finditer(r"\?", rest):
        query = rest[found.end() :]
        place = rest[: found.start()]
        if _QUERY_PATTERN.fullmatch(query) and ("@" in place or "@" not in query):
            return place, "?", query
    return rest, "", ""


def _shown_option(option: str) -> str:
    name, equals, _ = option.partition("=")
    secret = any(word in unquote_plus(name).lower() for word in _SECRET_WORDS)
    return f"{name}{equals}{MASK}" if secret and equals else option
