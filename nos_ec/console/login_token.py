"""The token with which operators log in to the console. It is not that of the API, which monitoring systems know."""

from __future__ import annotations

from pathlib import Path

from nos_ec.api.access import MAKE_ONE, Token
from nos_ec.api.host_check import is_loopback
from nos_ec.core.errors import ConfigError
from nos_ec.settings import ConsoleSettings, read_secret

SETTING = "console.token_file"


class LoginToken:
    """The content of console.token_file. The file may be replaced while the console runs, which ends all sessions."""

    def __init__(self, path: Path) -> None:
        """Raise ConfigError if the file cannot be used."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token: Token | None = None
        self.current()

    def current(self) -> Token:
        """Return the token: the same object until the token changes. Raises ConfigError if the file cannot be used."""
        seen = self._look()
        if self._token is None or seen is None or seen != self._seen:
            text = read_secret(self._path, SETTING, MAKE_ONE)
            if self._token is None or not self._token.matches(text):
                self._token = Token(text, (SETTING,))
            self._seen = seen
        return self._token

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def find_login_token(settings: ConsoleSettings, host: str, *, anonymous: bool) -> LoginToken | None:
    """Return the token of the settings, or None for a console without login, which only a loopback `host` may have.
    Raises ConfigError."""
    if anonymous:
        if not is_loopback(host):
            raise ConfigError(
                f"--anonymous works only on this machine, but the console listens on {host}; set {SETTING} instead, or"
                " listen on 127.0.0.1",
                settings=("console.host", SETTING),
            )
        return None
    if settings.token_file is None:
        raise ConfigError(
            f"the console needs a token to log in with: put one into a file and set {SETTING} ({MAKE_ONE}); to try the"
            " console out on this machine, use --anonymous instead",
            settings=(SETTING,),
        )
    return LoginToken(settings.token_file)
