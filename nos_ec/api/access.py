"""Access to the API: every request must carry the bearer token.

The API shows object names, so it does not start without a token. `api.anonymous` allows requests without one, for
trying the API out; it works only on a loopback address, but still opens the API to every user of the machine. Without a
token, requests that name another host are refused (host_check).
"""

from __future__ import annotations

import hashlib
import hmac

from nos_ec.api.host_check import is_loopback
from nos_ec.core.errors import ConfigError
from nos_ec.settings import ApiSettings, read_secret

TOKEN_CHARS_MIN = 16
MAKE_ONE = "create one with: openssl rand -hex 32"
_FILE = ("api.token_file",)
_TOKEN = ("api.token", *_FILE)


class Token:
    """A secret that can be compared but not shown."""

    def __init__(self, text: str, settings: tuple[str, ...] = _TOKEN) -> None:
        """Raise ConfigError if the text is too short, or cannot be sent in an HTTP header. `settings` are the dotted
        names of the settings that may hold it."""
        section = settings[0].partition(".")[0]
        if len(text) < TOKEN_CHARS_MIN:
            raise ConfigError(
                f"{section}: the token has {len(text)} characters, at least {TOKEN_CHARS_MIN} are needed; {MAKE_ONE}",
                settings=settings,
            )
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError(
                f"{section}: the token must be printable ASCII without spaces; {MAKE_ONE}", settings=settings
            )
        self._digest = _digest(text)

    def matches(self, given: str) -> bool:
        """Return whether the token is right, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(_digest(given), self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and hmac.compare_digest(self._digest, other._digest)

    def __hash__(self) -> int:
        return hash(self._digest)


def find_token(settings: ApiSettings) -> Token | None:
    """Return the token of the settings, or None if they allow requests without one. Raises ConfigError."""
    if settings.token is not None and settings.token_file is not None:
        raise ConfigError("api.token and api.token_file are both set; remove one of them", settings=_TOKEN)
    if settings.token is not None:
        return Token(settings.token.get_secret_value())
    if settings.token_file is not None:
        return Token(read_secret(settings.token_file, *_FILE, MAKE_ONE))
    if not settings.anonymous:
        raise ConfigError(
            f"the API needs a token: set NOS_EC_API__TOKEN in the environment, or set api.token_file ({MAKE_ONE});"
            " to try the API out on this machine, set api.anonymous = true instead",
            settings=(*_TOKEN, "api.anonymous"),
        )
    if not is_loopback(settings.host):
        raise ConfigError(
            f"api.anonymous works only on this machine, but api.host is {settings.host}; set a token, or set api.host"
            " to 127.0.0.1",
            settings=("api.anonymous", "api.host"),
        )
    return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
