"""The sessions of the console. They are kept in memory, so a restart ends them.

A browser has an id of 32 random bytes in a cookie. Only a hash of it is kept. The id of a browser that has not logged
in yet is not kept at all; it only ties the login form to that browser (`csrf`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass

from nos_ec.console.access.login_token import Identity
from nos_ec.ports.clock import Clock

SESSIONS_MAX = 100
"""A further login ends the session that was used least recently."""
IDLE_MS_MAX = 30 * 60_000
AGE_MS_MAX = 12 * 3_600_000
ID_BYTES = 32


@dataclass(slots=True)
class _Session:
    identity: Identity
    began_ms: int
    used_ms: int


class Sessions:
    """The sessions of one process. All calls come from one event loop, so it needs no lock."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._key = random_bytes(32)
        self._sessions: dict[bytes, _Session] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def new_id(self) -> str:
        """Return an id that was never used."""
        return self._random_bytes(ID_BYTES).hex()

    def csrf(self, session_id: str) -> str:
        """Return the value that a form must carry when the browser with this id sends it."""
        return hmac.new(self._key, session_id.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def csrf_matches(self, session_id: str, given: str) -> bool:
        """Return whether a form carried the right value, in a time that does not depend on the value."""
        return hmac.compare_digest(self.csrf(session_id).encode(), given.encode("utf-8", "replace"))

    def begin(self, identity: Identity) -> str:
        """Return the id of a new session, which lasts while this identity may log in."""
        now_ms = self._clock.now_ms()
        for key in [key for key, one in self._sessions.items() if not _lasts(one, now_ms)]:
            self._expire(key)
        while len(self._sessions) >= SESSIONS_MAX:
            self._expire(min(self._sessions, key=lambda key: self._sessions[key].used_ms))
        session_id = self.new_id()
        self._sessions[_hash(session_id)] = _Session(identity, now_ms, now_ms)
        return session_id

    def use(self, session_id: str, identities: Container[Identity]) -> Identity | None:
        """Return whose session this is if it lasts, and note that it was used now. It ends if those who may log in now,
        `identities`, do not include its owner."""
        key, now_ms = _hash(session_id), self._clock.now_ms()
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.identity not in identities or not _lasts(session, now_ms):
            self._expire(key)
            return None
        session.used_ms = now_ms
        return session.identity

    def known_browser(self, session_id: str) -> str:
        """Return a name for a browser whose session has ended without a logout: somebody has logged in with it before.
        It is empty for other browsers. The last SESSIONS_MAX browsers are known."""
        key = _hash(session_id)
        return key.hex() if key in self._ended else ""

    def end(self, session_id: str) -> None:
        """End a session, and forget it. Idempotent."""
        self._sessions.pop(_hash(session_id), None)
        self._ended.pop(_hash(session_id), None)

    def _expire(self, key: bytes) -> None:
        del self._sessions[key]
        self._ended[key] = None
        if len(self._ended) > SESSIONS_MAX:
            self._ended.popitem(last=False)


def _lasts(session: _Session, now_ms: int) -> bool:
    """Return whether a session is neither idle nor too old. It ends, too, if the clock was set back far."""
    return abs(now_ms - session.used_ms) < IDLE_MS_MAX and now_ms - session.began_ms < AGE_MS_MAX


def _hash(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "replace")).digest()
