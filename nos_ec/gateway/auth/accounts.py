"""Lets operators manage access keys, buckets and the rights of accounts (docs/S3.md)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from typing import Protocol

from nos_ec.core.errors import ConfigError, InvalidInput, Moved, NotFound
from nos_ec.core.ids import RESERVED_BUCKET
from nos_ec.core.quotas.quota import account_of
from nos_ec.gateway.auth.key_ring import is_of_ring
from nos_ec.gateway.auth.sealed_secrets import NONCE_BYTES, MasterKeys
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import AccessKey, AccessKeys, BucketRow, Buckets, BucketState, CannedAcl, KeyState, Rights
from nos_ec.ports.metadata.buckets import NOTE_BYTES_MAX
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import check_new_bucket

ACCESS_KEY_CHARS = 20
SECRET_CHARS = 40
SECRET_CHARS_MIN = 16
SECRET_CHARS_MAX = 128
PAGE_KEYS = 1000
LOOK_KEYS = 10
"""Page size of a search that usually ends at the first key."""
RIGHTS = {"read": Rights.READ, "write": Rights.WRITE, "list": Rights.LIST, "owner": Rights.OWNER}
_ACCOUNT = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_ACCESS_KEY = re.compile(r"[A-Za-z0-9._-]{3,128}")  # not a slash, which ends the key in a credential scope


@dataclass(frozen=True, slots=True)
class NewKey:
    """An access key with its secret, which is shown only once."""

    key: AccessKey
    secret: str = field(repr=False)


class AccountsMetadata(Buckets, AccessKeys, Protocol):
    """The parts of the metadata that accounts need."""

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """See `Objects.list_buckets`."""


class Accounts:
    """Manages access keys, buckets and grants."""

    def __init__(
        self,
        metadata: AccountsMetadata,
        clock: Clock,
        random: Callable[[int], bytes],
        changed: BucketState | None = None,
    ) -> None:
        """`random` returns the given number of cryptographically secure random bytes. `changed` has the buckets to be
        changed if `metadata` does not, because they are wide."""
        self._metadata = metadata
        self._changed: BucketState = changed or metadata
        self._clock = clock
        self._random = random

    def create_key(
        self,
        masters: MasterKeys,
        account: str,
        note: str = "",
        access_key: str | None = None,
        secret: str | None = None,
    ) -> NewKey:
        """Create an access key. `access_key` and `secret` import a key of another store, which clients continue to
        use. Raises InvalidInput, Conflict if the name is taken, Transient."""
        require_account(account)
        if len(note.encode()) > NOTE_BYTES_MAX:
            raise InvalidInput(f"the note has {len(note.encode())} bytes; the maximum is {NOTE_BYTES_MAX}")
        name = access_key or base64.b32encode(self._random(ACCESS_KEY_CHARS))[:ACCESS_KEY_CHARS].decode()
        if not _ACCESS_KEY.fullmatch(name):
            raise InvalidInput(f"{name!r} is not a valid access key: use 3 to 128 letters, digits and any of . _ -")
        plain = self._new_secret() if secret is None else _checked(secret)
        key = AccessKey(name, account, self._sealed(masters, name, plain), KeyState.ACTIVE, self._clock.now_ms(), note)
        self._metadata.add_access_key(key)
        return NewKey(key, plain)

    def rotate_key(self, masters: MasterKeys, access_key: str) -> NewKey:
        """Give an access key a new secret, make it active, and end its sessions. Gateways accept the old secret and the
        sessions until their cache expires. Raises NotFound, Transient."""
        _refuse_ring(access_key)
        key, plain = self.key(access_key), self._new_secret()
        sealed = self._sealed(masters, access_key, plain)
        changed = self._metadata.change_access_key(access_key, KeyState.ACTIVE, sealed, ends_sessions=True)
        self._require_key(access_key, changed)
        return NewKey(replace(key, secret=sealed, state=KeyState.ACTIVE), plain)

    def encrypt_again(self, masters: MasterKeys) -> int:
        """Encrypt all secrets, and the keys that encrypt objects, with the current master key, so that older master
        keys can be removed. Returns how many were changed. May be repeated after any error. Raises ConfigError,
        Corrupt, Transient."""
        changed = 0
        for key in self._records():
            if account_of(key.access_key) is None and not masters.is_present(key.secret):
                sealed = self._sealed(masters, key.access_key, masters.open(key.access_key, key.secret))
                changed += self._metadata.change_access_key(key.access_key, None, sealed, instead_of=key.secret)
        return changed

    def end_sessions(self, account: str) -> int:
        """End all temporary credentials of an account. Returns how many access keys it has, which stay valid. Gateways
        accept the credentials until their cache expires. May be repeated after any error. Raises InvalidInput,
        Transient."""
        require_account(account)
        keys = [key.access_key for key in self.keys() if key.account == account]
        return sum(self._metadata.change_access_key(access_key, ends_sessions=True) for access_key in keys)

    def require_known_secrets(self, masters: MasterKeys) -> None:
        """Raise ConfigError if access keys exist, but none of their secrets can be decrypted with these master keys:
        then no signed request could be served. Raises Transient."""
        seen = False
        for key in self.keys(LOOK_KEYS):
            if masters.is_known(key.secret):
                return
            seen = True
        if not seen:
            return
        raise ConfigError(
            "the secrets of all access keys were encrypted with another master key than the configured one: set the"
            " right one, or give the access keys new secrets with `nos-ec s3 key rotate`",
            settings=("s3.master_key", "s3.master_key_file"),
        )

    def set_key_state(self, access_key: str, state: KeyState) -> None:
        """Change the state of an access key. Raises NotFound, Transient."""
        _refuse_ring(access_key)
        self._require_key(access_key, self._metadata.change_access_key(access_key, state))

    def remove_key(self, access_key: str) -> None:
        """Remove an access key. Raises NotFound, Transient."""
        _refuse_ring(access_key)
        self._require_key(access_key, self._metadata.remove_access_key(access_key))

    def key(self, access_key: str) -> AccessKey:
        """Return the access key of this name. Raises NotFound, Transient."""
        found = self._metadata.access_key(access_key)
        if found is None:
            raise _no_key(access_key)
        return found

    def keys(self, page_keys: int = PAGE_KEYS) -> Iterator[AccessKey]:
        """Yield all access keys in order of name, reading pages of this size. Raises Transient."""
        return (key for key in self._records(page_keys) if not _is_of_store(key.access_key))

    def _records(self, page_keys: int = PAGE_KEYS) -> Iterator[AccessKey]:
        """Yield all access keys and the keys that encrypt objects."""
        after = ""
        while page := self._metadata.access_keys(after, page_keys):
            yield from page
            after = page[-1].access_key

    def create_bucket(self, name: str, owner: str) -> BucketRow:
        """Create a private bucket of this account, or return the existing one unchanged if the account owns it. Raises
        InvalidInput, Transient."""
        require_account(owner)
        require_new_bucket(name)
        self._changed.create_bucket(name, owner, CannedAcl.PRIVATE, self._clock.now_ms())
        row = self._changed.bucket(name)
        if row is None or row.owner != owner:
            whose = "nobody" if row is None else row.owner
            raise InvalidInput(
                f"bucket {name} exists and belongs to {whose}; see: nos-ec s3 bucket give, nos-ec s3 grant"
            )
        return row

    def give_bucket(self, bucket: str, account: str) -> None:
        """Make an account the owner of a bucket. Raises InvalidInput, NotFound, Transient."""
        require_account(account)
        if not self._changed.set_bucket_owner(bucket, account, self._clock.now_ms()):
            raise _no_bucket(bucket)

    def grant(self, bucket: str, account: str, rights: Rights) -> None:
        """Replace the rights of an account in a bucket of another owner. Raises InvalidInput, NotFound, Transient."""
        require_account(account)
        if not self._changed.grant(bucket, account, rights, self._clock.now_ms()):
            raise _no_bucket(bucket)

    def buckets(self, owner: str | None) -> Iterator[tuple[BucketRow, dict[str, Rights]]]:
        """Yield the buckets of one account, or of all for None, each with the rights granted to other accounts. The
        list of all buckets leaves out those that another cell serves. Raises InvalidInput, Transient."""
        if owner is None:
            yield from self._all_buckets()
            return
        for row in self._buckets_of(owner):
            yield row, self._metadata.grants(row.name)

    def _buckets_of(self, owner: str) -> Iterator[BucketRow]:
        require_account(owner)
        after = ""
        while page := self._metadata.buckets_of(owner, after, PAGE_KEYS):
            yield from page
            after = page[-1].name

    def _all_buckets(self) -> Iterator[tuple[BucketRow, dict[str, Rights]]]:
        for name, _ in groupby(merge(self._recorded(), self._holding_objects(), key=str.encode)):
            try:
                row, grants = self._metadata.bucket(name), self._metadata.grants(name)
            except Moved:
                continue
            if row is not None and name != RESERVED_BUCKET:
                yield row, grants

    def _recorded(self) -> Iterator[str]:
        after = ""
        while page := self._metadata.bucket_records(after, PAGE_KEYS):
            yield from (record.row.name for record in page)
            after = page[-1].row.name

    def _holding_objects(self) -> Iterator[str]:
        after = ""
        while page := self._metadata.list_buckets(after, PAGE_KEYS):
            yield from page
            after = page[-1]

    def _new_secret(self) -> str:
        """Return a secret without slash and plus, which some clients handle wrongly."""
        return base64.urlsafe_b64encode(self._random(SECRET_CHARS * 3 // 4)).decode()

    def _sealed(self, masters: MasterKeys, access_key: str, secret: str) -> bytes:
        return masters.seal(access_key, secret, self._random(NONCE_BYTES))

    def _require_key(self, access_key: str, found: bool) -> None:
        if not found:
            raise _no_key(access_key)


def _no_bucket(name: str) -> NotFound:
    return NotFound(f"bucket {name} does not exist; create it with: nos-ec s3 bucket create")


def require_account(account: str) -> None:
    """Raise InvalidInput if this is not a valid name of an account."""
    if not _ACCOUNT.fullmatch(account):
        raise InvalidInput(f"{account!r} is not a valid account: use 1 to 64 letters, digits and any of . _ @ + -")


def require_new_bucket(name: str) -> None:
    """Raise InvalidInput unless S3 clients, too, may create a bucket with this name."""
    try:
        check_new_bucket(name)
    except S3Error as error:
        raise InvalidInput(f"{name!r} cannot be the name of a bucket. {error.message}") from error


def rights_of(text: str) -> Rights:
    """Return the rights of a text such as `read,write` or `none`. Raises InvalidInput."""
    if text == "none":
        return Rights.NONE
    found = Rights.NONE
    for word in text.split(","):
        if word not in RIGHTS:
            raise InvalidInput(f"{word!r} is not a right; use some of {','.join(RIGHTS)}, or none")
        found |= RIGHTS[word]
    return found


def words_of(rights: Rights) -> list[str]:
    """Return the names of rights, as `rights_of` accepts them."""
    return [word for word, right in RIGHTS.items() if right in rights]


def _checked(secret: str) -> str:
    if not SECRET_CHARS_MIN <= len(secret) <= SECRET_CHARS_MAX or not secret.isascii() or not secret.isprintable():
        raise InvalidInput(f"a secret must have {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable ASCII characters")
    return secret


def _is_of_store(access_key: str) -> bool:
    """Return whether this names a key that encrypts objects, or the quota of an account, and not an access key."""
    return is_of_ring(access_key) or account_of(access_key) is not None


def _refuse_ring(access_key: str) -> None:
    """Raise NotFound for a record of the store, which is not an access key."""
    if _is_of_store(access_key):
        raise _no_key(access_key)


def _no_key(access_key: str) -> NotFound:
    return NotFound(f"access key {access_key} does not exist; see: nos-ec s3 key list")
