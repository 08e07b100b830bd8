"""Encrypts the secrets of access keys with a master key.

A server that verifies Signature Version 4 needs the secret itself; a hash of it would not suffice. The stored form:

    offset  size
         0     1  format, 1
         1     4  id of the master key: the first bytes of SHA-256 of "nos_ec master key" and the key
         5    12  nonce, random
        17        the secret, encrypted with AES-256-GCM; the access key is the associated data, so that the secret
                  of one access key cannot be copied to another

Source: NIST SP 800-38D. Random nonces of 96 bits allow 2^32 secrets under one master key (section 8.3).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nos_ec.core.errors import ConfigError, Corrupt

MASTER_KEY_BYTES = 32
MAKE_ONE = "create one with: openssl rand -hex 32"
_FORMAT = b"\1"
ID_BYTES = 4
NONCE_BYTES = 12
_FRONT = len(_FORMAT) + ID_BYTES + NONCE_BYTES
_HEX = re.compile(f"[0-9a-fA-F]{{{2 * MASTER_KEY_BYTES}}}")


class MasterKeys:
    """The current master key, which encrypts secrets, and older ones, which only decrypt."""

    def __init__(self, keys: Sequence[str], settings: tuple[str, ...] = ()) -> None:
        """`keys` are 64 hexadecimal digits each, the current key first. `settings` names the settings that they come
        from. Raises ConfigError."""
        if not keys or any(not _HEX.fullmatch(key) for key in keys):
            raise ConfigError(
                f"s3: each line must be a master key of {2 * MASTER_KEY_BYTES} hexadecimal digits; {MAKE_ONE}",
                settings=settings,
            )
        secret_keys = [bytes.fromhex(key) for key in keys]
        self._present = _id_of(secret_keys[0])
        self._keys = {_id_of(key): key for key in reversed(secret_keys)}
        self._ciphers = {key_id: AESGCM(key) for key_id, key in self._keys.items()}

    def seal(self, access_key: str, secret: str, nonce: bytes) -> bytes:
        """Return the stored form of a secret. `nonce` is NONCE_BYTES random bytes that were never used before."""
        sealed = self._ciphers[self._present].encrypt(nonce, secret.encode(), access_key.encode())
        return _FORMAT + self._present + nonce + sealed

    def open(self, access_key: str, sealed: bytes) -> str:
        """Return the secret. Raises ConfigError if it was encrypted with an unknown master key, Corrupt."""
        key_id, nonce = sealed[1 : 1 + ID_BYTES], sealed[1 + ID_BYTES : _FRONT]
        if sealed[:1] != _FORMAT or len(sealed) < _FRONT:
            raise Corrupt(f"access key {access_key}: its secret has an unknown format")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise ConfigError(
                f"access key {access_key}: its secret was encrypted with another master key; add that key as a further"
                " line to the file of s3.master_key_file, or give the access key a new secret: nos-ec s3 key rotate",
                settings=("s3.master_key", "s3.master_key_file"),
            )
        try:
            return cipher.decrypt(nonce, sealed[_FRONT:], access_key.encode()).decode()
        except (InvalidTag, UnicodeDecodeError):
            raise Corrupt(f"access key {access_key}: its secret was changed, or belongs to another key") from None

    def derived(self, purpose: str) -> tuple[bytes, dict[bytes, bytes]]:
        """Return the id of the current master key, and by the id of each master key a key of 32 bytes for one purpose
        alone, which reveals nothing about the master key or the keys for other purposes (HKDF-SHA256, RFC 5869)."""
        keys = {
            key_id: HKDF(SHA256(), MASTER_KEY_BYTES, salt=None, info=f"nos_ec {purpose}".encode()).derive(key)
            for key_id, key in self._keys.items()
        }
        return self._present, keys

    def is_known(self, sealed: bytes) -> bool:
        """Return whether one of the master keys encrypted this secret."""
        return sealed[:1] == _FORMAT and sealed[1 : 1 + ID_BYTES] in self._ciphers

    def is_present(self, sealed: bytes) -> bool:
        """Return whether the current master key encrypted this secret."""
        return sealed[:1] == _FORMAT and sealed[1 : 1 + ID_BYTES] == self._present


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"nos_ec master key" + key).digest()[:ID_BYTES]
