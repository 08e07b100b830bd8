"""Issues and opens session tokens, which hold temporary credentials, so that no table of them is needed.

A client sends the token with each request, and signs with the secret that belongs to it. Base64 (URL-safe, without
padding) of:

    offset  size
         0     1  format, 1
         1     4  id of the master key (sealed_secrets.py)
         5    12  nonce, random
        17        the session as JSON, compressed with zlib and encrypted with AES-256-GCM; the temporary access key is
                  the associated data

The encryption key is derived from the master key for this purpose alone, and the secret is an HMAC of access key and
token under a second derived key: a client must know the secret to use a token, and cannot learn it from the token.

Sources: RFC 5869 (HKDF); NIST SP 800-38D, section 8.3 (2^32 random nonces under one key); "Temporary security
credentials in IAM" of the IAM user guide.
"""

from __future__ import annotations

import base64
import hmac
import json
import zlib
from binascii import Error as BadBase64
from collections.abc import Callable
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from nos_ec.gateway.auth.sealed_secrets import ID_BYTES, NONCE_BYTES, MasterKeys
from nos_ec.s3.errors import S3Error
from nos_ec.s3.sts import Credentials, Session

TOKEN_CHARS_MAX = 4096
"""More than a token with the longest policy has."""
SESSION_BYTES_MAX = 16 << 10
"""The decompressed session, whose policy has at most 2,048 characters."""
SECRET_CHARS = 40
KEY_PREFIX = "ASIA"
"""How AWS names temporary access keys."""
_KEY_RANDOM_BYTES = 10
_FORMAT = b"\1"
_FRONT = len(_FORMAT) + ID_BYTES + NONCE_BYTES


class SessionTokens:
    """Safe to call from several threads."""

    def __init__(self, masters: MasterKeys, random: Callable[[int], bytes]) -> None:
        """`random` returns the given number of cryptographically secure random bytes."""
        self._random = random
        self._present, keys = masters.derived("session token")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._secret_keys = masters.derived("session secret")[1]

    def issue(self, session: Session) -> Credentials:
        """Return new credentials of a session. Raises S3Error (PackedPolicyTooLarge) if the policy is too long even
        after compression, such as one of random characters that are not ASCII."""
        access_key = KEY_PREFIX + base64.b32encode(self._random(_KEY_RANDOM_BYTES)).decode()
        nonce, encoded = self._random(NONCE_BYTES), _encoded(session)
        sealed = self._ciphers[self._present].encrypt(nonce, zlib.compress(encoded), access_key.encode())
        token = base64.urlsafe_b64encode(_FORMAT + self._present + nonce + sealed).rstrip(b"=").decode()
        if len(encoded) > SESSION_BYTES_MAX or len(token) > TOKEN_CHARS_MAX:
            raise S3Error("PackedPolicyTooLarge", "The session policy is too large, once it is encoded.")
        return Credentials(access_key, self._secret(self._present, access_key, token), token, session)

    def open(self, access_key: str, token: str) -> Credentials:
        """Return the credentials of a token that this store issued with this access key. They may have expired. Raises
        S3Error (InvalidToken)."""
        raw = _decoded(token)
        key_id, nonce = raw[1 : 1 + ID_BYTES], raw[1 + ID_BYTES : _FRONT]
        cipher = self._ciphers.get(key_id)
        if raw[:1] != _FORMAT or len(raw) <= _FRONT or cipher is None:
            raise invalid_token()
        try:
            session = _session(cipher.decrypt(nonce, raw[_FRONT:], access_key.encode()))
        except InvalidTag:
            raise invalid_token() from None
        return Credentials(access_key, self._secret(key_id, access_key, token), token, session)

    def _secret(self, key_id: bytes, access_key: str, token: str) -> str:
        mac = hmac.digest(self._secret_keys[key_id], f"{access_key}/{token}".encode(), "sha256")
        return base64.urlsafe_b64encode(mac).decode()[:SECRET_CHARS]


def invalid_token() -> S3Error:
    """Return the error for a token that this store did not issue, or whose session has been ended."""
    return S3Error("InvalidToken", "The provided token is malformed or otherwise invalid.")


def _encoded(session: Session) -> bytes:
    fields = [
        session.account,
        session.parent,
        session.generation.hex(),
        session.expires_s,
        session.role,
        session.name,
        session.policy,
    ]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _session(compressed: bytes) -> Session:
    """Decode what `_encoded` made. The bytes are authentic, so this store has written them."""
    data = zlib.decompressobj().decompress(compressed, SESSION_BYTES_MAX)
    account, parent, generation, *others = json.loads(data.decode("utf-8", "surrogatepass"))
    rest: list[Any] = others
    return Session(account, parent, bytes.fromhex(generation), *rest)


def _decoded(token: str) -> bytes:
    if len(token) > TOKEN_CHARS_MAX or not token.isascii():
        raise invalid_token()
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except BadBase64:
        raise invalid_token() from None
    # A token has one form, or the secret would differ from the one that was issued.
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != token:
        raise invalid_token()
    return raw
