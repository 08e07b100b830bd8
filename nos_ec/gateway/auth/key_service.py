"""Wraps keys with a key service that speaks the protocol of Vault's transit engine, such as Vault and OpenBao.

Source: "Transit secrets engine (API)" of OpenBao: `encrypt`, `decrypt` and `rewrap` of a named key, with a token in the
header X-Vault-Token.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TypeVar
from urllib.parse import urlsplit

from nos_ec.core.errors import ConfigError, Corrupt, NosError, Transient
from nos_ec.ports.clock import Clock, waits
from nos_ec.settings import S3Settings, read_secret

_T = TypeVar("_T")
DEADLINE_S = 5.0
"""How long one call may take. Requests that need a key wait for it."""
_ANSWER_BYTES_MAX = 64 << 10
BACK_OFF_MS, BACK_OFF_MS_MAX = 500, 30_000
_SETTINGS = ("s3.kms_url", "s3.kms_token_file", "s3.kms_ca_file")
_ADVICE = "write a token of the key service to it that may encrypt, decrypt and rewrap"
_WRAPPED = re.compile(r"vault:v[0-9]{1,9}:[0-9A-Za-z+/=]{1,250}")


def find_key_service(settings: S3Settings, clock: Clock) -> KeyService | None:
    """Return the configured key service; None if there is none. Raises ConfigError."""
    url, token_file = settings.kms_url, settings.kms_token_file
    if url is None:
        return None
    if token_file is None:
        raise ConfigError("s3.kms_url needs s3.kms_token_file, a file with a token", settings=_SETTINGS)

    def read_token() -> str:
        return read_secret(token_file, "s3.kms_token_file", _ADVICE)

    read_token()
    return KeyService(url, read_token, settings.kms_ca_file, clock)


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last `count` calls have failed, the latest with `error`. For `wait_ms`, until `until_ms`, no further call is
    made."""

    count: int
    wait_ms: int
    until_ms: int
    error: NosError

    def new_error(self) -> NosError:
        """Return an error to raise. One that is raised again and again would collect tracebacks."""
        if isinstance(self.error, ConfigError):
            return ConfigError(str(self.error), settings=self.error.settings)
        return type(self.error)(str(self.error))


class KeyService:
    """A key service. Safe to call from several threads. After a failed call, further calls fail at once for a time that
    doubles up to BACK_OFF_MS_MAX: those for the same KMS key if the service refused it or answered something wrong,
    otherwise all. The token is read for each call, so that it can be renewed."""

    def __init__(self, url: str, read_token: Callable[[], str], ca_file: Path | None, clock: Clock) -> None:
        """`url` may end with the path of the engine, which is /transit by default. Raises ConfigError."""
        parts = urlsplit(url)
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(f"s3.kms_url {url}: {error}", settings=_SETTINGS) from None
        self._path = f"/v1/{parts.path.strip('/') or 'transit'}"
        self._read_token = read_token
        self._clock = clock
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"s3.kms_ca_file {ca_file} cannot be used: {error}", settings=_SETTINGS) from error
        self._lock = Lock()
        self._failures: dict[str | None, _Failure] = {}  # by the KMS key that is refused; None: of the service itself

    def wrap(self, kms_key: str, key: bytes) -> str:
        """Return a key, encrypted with the newest version of a KMS key. Raises ConfigError if the service refuses it,
        Corrupt, Transient."""
        return self._wrapped("encrypt", kms_key, plaintext=base64.b64encode(key).decode())

    def wrap_again(self, kms_key: str, wrapped: str) -> str:
        """Return a wrapped key, encrypted with the newest version of its KMS key. Raises the same as `wrap`."""
        return self._wrapped("rewrap", kms_key, ciphertext=wrapped)

    def unwrap(self, kms_key: str, wrapped: str, fits: Callable[[bytes], bool] = lambda _: True) -> bytes:
        """Return the key that was wrapped, for which `fits` must return true. Raises the same as `wrap`."""

        def read(found: dict[str, object]) -> bytes:
            key = base64.b64decode(str(found["plaintext"]), validate=True)
            if not fits(key):
                raise Corrupt(f"the key service returned another key than it was given for the KMS key {kms_key!r}")
            return key

        return self._call("decrypt", kms_key, read, ciphertext=wrapped)

    def _wrapped(self, operation: str, kms_key: str, **fields: str) -> str:
        def read(found: dict[str, object]) -> str:
            text = found["ciphertext"]
            if not isinstance(text, str) or not _WRAPPED.fullmatch(text):
                raise ValueError
            return text

        return self._call(operation, kms_key, read, **fields)

    def _call(self, operation: str, kms_key: str, read: Callable[[dict[str, object]], _T], **fields: str) -> _T:
        now_ms = self._clock.now_ms()
        with self._lock:
            for failure in map(self._failures.get, (None, kms_key)):
                if failure is not None and waits(failure.until_ms, now_ms, failure.wait_ms):
                    raise failure.new_error()
        try:
            status, body = self._request(f"{self._path}/{operation}/{kms_key}", json.dumps(fields).encode())
            if status in (412, 429) or status >= 500:
                raise Transient(f"the key service answered with status {status}: {_errors(body)}")
        except (OSError, http.client.HTTPException, Transient) as error:
            why = str(error) if isinstance(error, Transient) else f"the key service cannot be reached: {error}"
            raise self._failed(None, Transient(why)) from error
        try:
            if status != 200:
                raise _refusal(operation, kms_key, status, _errors(body))
            answer = read(dict(json.loads(body)["data"]))
        except NosError as error:
            raise self._failed(kms_key, error) from None
        except (KeyError, TypeError, ValueError, RecursionError):
            wrong = Corrupt(f"the key service answered to {operation} with something else than JSON with a key")
            raise self._failed(kms_key, wrong) from None
        with self._lock:
            self._failures.pop(None, None)
            self._failures.pop(kms_key, None)
        return answer

    def _failed(self, kms_key: str | None, error: NosError) -> NosError:
        """Remember that a call failed, for all KMS keys with None. Returns the error."""
        with self._lock:
            before = self._failures.get(kms_key)
            count = 0 if before is None else before.count
            wait_ms = min(BACK_OFF_MS << min(count, 10), BACK_OFF_MS_MAX)
            self._failures[kms_key] = _Failure(count + 1, wait_ms, self._clock.now_ms() + wait_ms, error)
            if kms_key is not None:  # the service itself answers
                self._failures.pop(None, None)
        return error

    def _request(self, target: str, body: bytes) -> tuple[int, bytes]:
        token = self._read_token()
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError("the token in s3.kms_token_file has spaces or other wrong characters", settings=_SETTINGS)
        headers = {"X-Vault-Token": token, "Content-Type": "application/json"}
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=DEADLINE_S)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=DEADLINE_S, context=self._tls)
        # No timeout of the socket limits how long a name is resolved, or an answer that comes byte by byte. So a thread
        # waits for them. It ends when the resolver gives up, which it does before many calls have been made.
        found: list[tuple[int, bytes] | Exception] = []
        is_late = Event()

        def ask() -> None:
            try:
                connection.connect()
                if not is_late.is_set():
                    found.append(_exchange(connection, target, body, headers))
            except Exception as error:
                found.append(error)
            finally:
                connection.close()

        asking = Thread(target=ask, name="key-service", daemon=True)
        asking.start()
        asking.join(DEADLINE_S)
        if not found:
            is_late.set()
            _abort(connection)
            raise Transient("the key service is slow to answer")
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]


def _refusal(operation: str, kms_key: str, status: int, why: str) -> NosError:
    if status == 403:  # also for a token that has expired, which its owner renews
        return Transient(f"the key service answered with status 403 for the KMS key {kms_key!r}: {why}")
    return ConfigError(
        f"the key service refuses to {operation} with the KMS key {kms_key!r} (status {status}): {why}; create the key"
        " there, or correct s3.kms_url",
        settings=_SETTINGS,
    )


def _exchange(
    connection: http.client.HTTPConnection, target: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection.request("POST", target, body, headers)
    with connection.getresponse() as answer:
        received = answer.read(_ANSWER_BYTES_MAX)
        if answer.length:  # the rest did not arrive, or is too long
            raise Transient("the key service sends too much")
        return answer.status, received


def _abort(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):  # it is not connected yet, or closed already
        connection.sock.shutdown(socket.SHUT_RDWR)


def _errors(body: bytes) -> str:
    try:
        return "; ".join(map(str, json.loads(body)["errors"]))[:200] or "no reason was given"
    except (KeyError, TypeError, ValueError, RecursionError):
        return "no reason was given"
