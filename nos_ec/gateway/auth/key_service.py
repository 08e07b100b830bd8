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
from pathlib import Path
from threading import Lock, Timer
from urllib.parse import urlsplit

from nos_ec.core.errors import ConfigError, Corrupt, Transient
from nos_ec.ports.clock import Clock
from nos_ec.settings import S3Settings, read_secret

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


class KeyService:
    """A key service. Safe to call from several threads. After a failed call, all calls fail at once for a time that
    doubles up to BACK_OFF_MS_MAX. The token is read for each call, so that it can be renewed."""

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
        self._failures = 0
        self._not_before_ms = 0
        self._why = ""

    def wrap(self, kms_key: str, key: bytes) -> str:
        """Return a key, encrypted with the newest version of a KMS key. Raises ConfigError if the service refuses it,
        Corrupt, Transient."""
        return self._wrapped("encrypt", kms_key, plaintext=base64.b64encode(key).decode())

    def wrap_again(self, kms_key: str, wrapped: str) -> str:
        """Return a wrapped key, encrypted with the newest version of its KMS key. Raises the same as `wrap`."""
        return self._wrapped("rewrap", kms_key, ciphertext=wrapped)

    def unwrap(self, kms_key: str, wrapped: str) -> bytes:
        """Return the key that was wrapped. Raises the same as `wrap`."""
        found = self._call("decrypt", kms_key, ciphertext=wrapped)
        try:
            return base64.b64decode(str(found["plaintext"]), validate=True)
        except (KeyError, ValueError):
            raise Corrupt("the key service answered without a key") from None

    def _wrapped(self, operation: str, kms_key: str, **fields: str) -> str:
        found = self._call(operation, kms_key, **fields).get("ciphertext")
        if not isinstance(found, str) or not _WRAPPED.fullmatch(found):
            raise Corrupt("the key service answered without a wrapped key")
        return found

    def _call(self, operation: str, kms_key: str, **fields: str) -> dict[str, object]:
        with self._lock:
            if self._clock.now_ms() < self._not_before_ms:
                raise Transient(self._why)
        try:
            status, body = self._request(f"{self._path}/{operation}/{kms_key}", json.dumps(fields).encode())
            if status in (403, 412, 429) or status >= 500:
                raise Transient(f"the key service answered with status {status}: {_errors(body)}")
        except (OSError, http.client.HTTPException, Transient) as error:
            raise self._failed(error) from error
        with self._lock:
            self._failures = self._not_before_ms = 0
        if status != 200:
            raise ConfigError(
                f"the key service refuses to {operation} with the KMS key {kms_key!r} (status {status}):"
                f" {_errors(body)}; create the key there, or correct s3.kms_url",
                settings=_SETTINGS,
            )
        try:
            return dict(json.loads(body)["data"])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise Corrupt("the key service answered with something else than JSON with data") from None

    def _failed(self, error: Exception) -> Transient:
        why = str(error) if isinstance(error, Transient) else f"the key service cannot be reached: {error}"
        with self._lock:
            wait_ms = min(BACK_OFF_MS << min(self._failures, 10), BACK_OFF_MS_MAX)
            self._failures += 1
            self._not_before_ms, self._why = self._clock.now_ms() + wait_ms, why
        return Transient(why)

    def _request(self, target: str, body: bytes) -> tuple[int, bytes]:
        token = self._read_token()
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError("the token in s3.kms_token_file has spaces or other wrong characters", settings=_SETTINGS)
        headers = {"X-Vault-Token": token, "Content-Type": "application/json"}
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=DEADLINE_S)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=DEADLINE_S, context=self._tls)
        # The timeout of a socket is one for each read, so a server that sends slowly could take longer.
        watch = Timer(DEADLINE_S, _abort, [connection])
        watch.daemon = True
        watch.start()
        try:
            connection.request("POST", target, body, headers)
            answer = connection.getresponse()
            body = answer.read(_ANSWER_BYTES_MAX)
            if answer.length:  # the rest did not arrive, or is too long
                raise Transient("the key service is slow to answer, or sends too much")
            return answer.status, body
        finally:
            watch.cancel()
            connection.close()


def _abort(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):  # it is closed already
        connection.sock.shutdown(socket.SHUT_RDWR)


def _errors(body: bytes) -> str:
    try:
        return "; ".join(map(str, json.loads(body)["errors"]))[:200] or "no reason was given"
    except (KeyError, TypeError, ValueError, RecursionError):
        return "no reason was given"
