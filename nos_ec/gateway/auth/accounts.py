"""Access keys and what accounts may do, as operators manage them (docs/S3.md)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from typing import Protocol

from nos_ec.core.errors import ConfigError, InvalidInput, NotFound
from nos_ec.core.ids import BUCKET_BYTES_MAX, RESERVED_BUCKET
from nos_ec.gateway.auth.sealed_secrets import NONCE_BYTES, MasterKeys
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import AccessKey, AccessKeys, BucketRow, Buckets, CannedAcl, KeyState, Rights
from nos_ec.ports.metadata.buckets import NOTE_BYTES_MAX

ACCESS_KEY_CHARS = 20
SECRET_CHARS = 40
SECRET_CHARS_MIN = 16
SECRET_CHARS_MAX = 128
PAGE_KEYS = 1000
LOOK_KEYS = 10
"""Page size of a search that usually ends with the first key."""
RIGHTS = {"read": Rights.READ, "write": Rights.WRITE, "list": Rights.LIST, "owner": Rights.OWNER}
_ACCOUNT = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_ACCESS_KEY = re.compile(r"[A-Za-z0-9._-]{3,128}")  # a slash would end it in a signature's scope


@dataclass(frozen=True, slots=True)
class NewKey:
    """An access key with its secret, which nobody can look up later."""

    key: AccessKey
    secret: str = field(repr=False)


class AccountsMetadata(Buckets, AccessKeys, Protocol):
    """The parts of the metadata that accounts need."""

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """See `Objects.list_buckets`."""
        ...


class Accounts:
    """Manages access keys, buckets and grants."""

    def __init__(self, metadata: AccountsMetadata, clock: Clock, random: Callable[[int], bytes]) -> None:
        """random: returns as many random bytes, fit for secrets."""
        self._metadata = metadata
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
        """Make an access key. access_key, secret: those of another store that clients are to go on with. Raises
        InvalidInput, Conflict if there is one of that name, Transient."""
        require_account(account)
        if len(note.encode()) > NOTE_BYTES_MAX:
            raise InvalidInput(f"a note of {len(note.encode())} bytes; {NOTE_BYTES_MAX} are possible at most")
        name = access_key or base64.b32encode(self._random(ACCESS_KEY_CHARS))[:ACCESS_KEY_CHARS].decode()
        if not _ACCESS_KEY.fullmatch(name):
            raise InvalidInput(f"{name!r} is no access key: use 3 to 128 letters, digits and any of . _ -")
        plain = self._new_secret() if secret is None else _checked(secret)
        key = AccessKey(name, account, self._sealed(masters, name, plain), KeyState.ACTIVE, self._clock.now_ms(), note)
        self._metadata.add_access_key(key)
        return NewKey(key, plain)

    def rotate_key(self, masters: MasterKeys, access_key: str) -> NewKey:
        """Give an access key a new secret, and make it active. The old secret is refused as soon as the gateways have
        looked again. Raises NotFound, Transient."""
        key, plain = self.key(access_key), self._new_secret()
        sealed = self._sealed(masters, access_key, plain)
        self._require_key(access_key, self._metadata.change_access_key(access_key, KeyState.ACTIVE, sealed))
        return NewKey(replace(key, secret=sealed, state=KeyState.ACTIVE), plain)

    def encrypt_again(self, masters: MasterKeys) -> int:
        """Encrypt all secrets with the present master key, so that older ones can go. Returns how many were changed.
        May be called again after any error. Raises ConfigError, Corrupt, Transient."""
        changed = 0
        for key in self.keys():
            if not masters.is_present(key.secret):
                sealed = self._sealed(masters, key.access_key, masters.open(key.access_key, key.secret))
                changed += self._metadata.change_access_key(key.access_key, key.state, sealed)
        return changed

    def require_known_secrets(self, masters: MasterKeys) -> None:
        """Raises ConfigError if there are access keys, but these master keys have encrypted the secret of none of them:
        then no signed request can be answered. Raises Transient."""
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
        """Raises NotFound, Transient."""
        self._require_key(access_key, self._metadata.change_access_key(access_key, state))

    def remove_key(self, access_key: str) -> None:
        """Raises NotFound, Transient."""
        self._require_key(access_key, self._metadata.remove_access_key(access_key))

    def key(self, access_key: str) -> AccessKey:
        """Raises NotFound, Transient."""
        found = self._metadata.access_key(access_key)
        if found is None:
            raise _no_key(access_key)
        return found

    def keys(self, page_keys: int = PAGE_KEYS) -> Iterator[AccessKey]:
        """Yield all access keys, by name, read in pages of this size. Raises Transient."""
        after = ""
        while page := self._metadata.access_keys(after, page_keys):
            yield from page
            after = page[-1].access_key

    def create_bucket(self, name: str, owner: str) -> BucketRow:
        """Make a private bucket of this account. A bucket of this owner that exists is left as it is. Raises
        InvalidInput, Transient."""
        require_account(owner)
        if not 1 <= len(name.encode()) <= BUCKET_BYTES_MAX or "/" in name or name == RESERVED_BUCKET:
            raise InvalidInput(f"{name!r} cannot be the name of a bucket")
        self._metadata.create_bucket(name, owner, CannedAcl.PRIVATE, self._clock.now_ms())
        row = self._metadata.bucket(name)
        if row is None or row.owner != owner:
            whose = "nobody" if row is None else row.owner
            raise InvalidInput(
                f"bucket {name} exists and belongs to {whose}; see: nos-ec s3 bucket give, nos-ec s3 grant"
            )
        return row

    def give_bucket(self, bucket: str, account: str) -> None:
        """Make an account the owner of a bucket. Raises InvalidInput, NotFound, Transient."""
        require_account(account)
        if not self._metadata.set_bucket_owner(bucket, account, self._clock.now_ms()):
            raise _no_bucket(bucket)

    def grant(self, bucket: str, account: str, rights: Rights) -> None:
        """Replace what an account may do in a bucket of another one. Raises InvalidInput, NotFound, Transient."""
        require_account(account)
        if not self._metadata.grant(bucket, account, rights, self._clock.now_ms()):
            raise _no_bucket(bucket)

    def buckets(self, owner: str | None) -> Iterator[tuple[BucketRow, dict[str, Rights]]]:
        """Yield the buckets of one account, or of all, each with what others may do in it. Raises InvalidInput,
        Transient."""
        for row in self._all_buckets() if owner is None else self._buckets_of(owner):
            yield row, self._metadata.grants(row.name)

    def _buckets_of(self, owner: str) -> Iterator[BucketRow]:
        require_account(owner)
        after = ""
        while page := self._metadata.buckets_of(owner, after, PAGE_KEYS):
            yield from page
            after = page[-1].name

    def _all_buckets(self) -> Iterator[BucketRow]:
        for name, _ in groupby(merge(self._recorded(), self._holding_objects(), key=str.encode)):
            row = self._metadata.bucket(name)
            if row is not None and name != RESERVED_BUCKET:
                yield row

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
        """Without slash and plus, which some clients get wrong."""
        return base64.urlsafe_b64encode(self._random(SECRET_CHARS * 3 // 4)).decode()

    def _sealed(self, masters: MasterKeys, access_key: str, secret: str) -> bytes:
        return masters.seal(access_key, secret, self._random(NONCE_BYTES))

    def _require_key(self, access_key: str, found: bool) -> None:
        if not found:
            raise _no_key(access_key)


def _no_bucket(name: str) -> NotFound:
    return NotFound(f"bucket {name} does not exist; create it with: nos-ec s3 bucket create")


def require_account(account: str) -> None:
    """Raises InvalidInput for what is no name of an account."""
    if not _ACCOUNT.fullmatch(account):
        raise InvalidInput(f"{account!r} is no account: use 1 to 64 letters, digits and any of . _ @ + -")


def rights_of(text: str) -> Rights:
    """Rights named as `read,write`; `none` for none. Raises InvalidInput."""
    if text == "none":
        return Rights.NONE
    found = Rights.NONE
    for word in text.split(","):
        if word not in RIGHTS:
            raise InvalidInput(f"{word!r} is no right; give some of {','.join(RIGHTS)}, or none")
        found |= RIGHTS[word]
    return found


def words_of(rights: Rights) -> list[str]:
    """The names of rights, as `rights_of` takes them."""
    return [word for word, right in RIGHTS.items() if right in rights]


def _checked(secret: str) -> str:
    if not SECRET_CHARS_MIN <= len(secret) <= SECRET_CHARS_MAX or not secret.isascii() or not secret.isprintable():
        raise InvalidInput(f"a secret must have {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable ASCII characters")
    return secret


def _no_key(access_key: str) -> NotFound:
    return NotFound(f"there is no access key {access_key}; see: nos-ec s3 key list")
