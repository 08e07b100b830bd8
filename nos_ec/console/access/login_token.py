"""The tokens with which people log in to the console. None is that of the API, which monitoring systems know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nos_ec.api.access import MAKE_ONE, Token
from nos_ec.api.host_check import is_loopback
from nos_ec.core.errors import ConfigError
from nos_ec.settings import Settings, read_secret

SETTING = "console.token_file"
OPERATORS = "console.operators_file"
CHANGES = "console.changes"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LINE = f"write a line NAME:TOKEN for each operator, with tokens of their own ({MAKE_ONE})"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a token stands for: `operator` is the name of an operator, who may make changes. It is empty for the token
    of console.token_file, which several people may know, and which only shows the pages."""

    operator: str
    token: Token


class LoginTokens:
    """The contents of console.token_file and console.operators_file. The files may be replaced while the console runs,
    which ends the sessions of those whose token is in them no more."""

    def __init__(self, token_file: Path | None, operators_file: Path | None = None) -> None:
        """Raise ConfigError if a file cannot be used."""
        self._token_file = token_file
        self._operators_file = operators_file
        self._seen: list[tuple[int, int, int] | None] = []
        self._identities: tuple[Identity, ...] = ()
        self.current()

    def current(self) -> tuple[Identity, ...]:
        """Return everyone who may log in now. Raises ConfigError if a file cannot be used."""
        seen = [_look(path) for path in (self._token_file, self._operators_file) if path is not None]
        if None in seen or seen != self._seen:
            self._identities = self._read()
            self._seen = seen
        return self._identities

    def find(self, given: str) -> Identity | None:
        """Return whose token this is, or None, in a time that does not depend on how much of it is right. Raises
        ConfigError."""
        found = [one for one in self.current() if one.token.matches(given)]
        return found[0] if found else None

    def _read(self) -> tuple[Identity, ...]:
        found: list[Identity] = []
        if self._token_file is not None:
            found.append(Identity("", Token(read_secret(self._token_file, SETTING, MAKE_ONE), (SETTING,))))
        if self._operators_file is not None:
            found += _operators(read_secret(self._operators_file, OPERATORS, _LINE))
        if len({one.operator for one in found}) < len(found):
            raise ConfigError(f"{OPERATORS}: two operators have the same name; {_LINE}", settings=(OPERATORS,))
        if len({one.token for one in found}) < len(found):
            raise ConfigError(
                f"{OPERATORS}: a token appears twice, there or in {SETTING}; {_LINE}", settings=(OPERATORS, SETTING)
            )
        return tuple(found)


def _operators(text: str) -> Iterator[Identity]:
    for number, line in enumerate(text.splitlines(), 1):
        name, _, token = line.strip().partition(":")
        if not line.strip():
            continue
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{OPERATORS}: line {number} does not begin with the name of an operator, of letters, digits and ._@-,"
                f" and a colon; {_LINE}",
                settings=(OPERATORS,),
            )
        try:
            yield Identity(name, Token(token, (OPERATORS,)))
        except ConfigError as error:
            raise ConfigError(f"{OPERATORS}: line {number}: {error}", settings=(OPERATORS,)) from None


def _look(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def find_login_tokens(settings: Settings, host: str, *, anonymous: bool) -> LoginTokens | None:
    """Return the tokens of the settings, or None for a console without login, which only a loopback `host` may have.
    With console.changes, there must be operators and an audit trail, which says who made a change. Raises ConfigError.
    """
    console = settings.console
    if anonymous and console.changes:
        raise ConfigError(
            f"{CHANGES} needs the name of the operator who makes a change, so it excludes --anonymous; remove one of"
            " them",
            settings=(CHANGES,),
        )
    if anonymous:
        if not is_loopback(host):
            raise ConfigError(
                f"--anonymous works only on this machine, but the console listens on {host}; set {SETTING} instead, or"
                " listen on 127.0.0.1",
                settings=("console.host", SETTING),
            )
        return None
    if console.changes and console.operators_file is None:
        raise ConfigError(f"{CHANGES} needs {OPERATORS}: {_LINE}", settings=(OPERATORS, CHANGES))
    changed = [cell.settings for cell in settings.cells.values()] or [settings]
    if console.changes and any(
        one.console.changes and one.audit.folder_in(one.store.root, one.store.backend) is None for one in changed
    ):
        raise ConfigError(
            f"{CHANGES} needs an audit trail, which records who made a change: set audit.folder, and"
            " audit.size_bytes_max above 0",
            settings=("audit.folder", "audit.size_bytes_max", CHANGES),
        )
    if console.token_file is None and console.operators_file is None:
        raise ConfigError(
            f"the console needs a token to log in with: put one into a file and set {SETTING} ({MAKE_ONE}); to try the"
            " console out on this machine, use --anonymous instead",
            settings=(SETTING,),
        )
    return LoginTokens(console.token_file, console.operators_file)
