"""The keys of a store that encrypt its objects.

A key is 32 random bytes with a number, from 1. It is stored like the secret of an access key, encrypted with the master
key, in a record that no client can name and that is not active. So whatever keeps access keys keeps these: dumps, the
store's own copy of its access records for a rebuild, and `nos-ec s3 key reencrypt` for a new master key. Envelopes of
objects, also in old blocks and dumps, name keys by their numbers, so no key is ever changed or removed.

A key may belong to a KMS key, which has a name. Such keys encrypt the objects that ask for that KMS key (SSE-KMS), and
the others those that ask for none (SSE-S3). The secret of a record is the key in hexadecimal, after `kms`, the name of
the KMS key and spaces if it belongs to one. With a key service it is `service`, the name, the key as the service has
encrypted it, and a MAC that only this key can have made: objects that were encrypted with another key, because the
service returned a wrong one, could never be decrypted. Records of older programs lack the MAC until they are wrapped
again. Such a key is asked for when it is first needed, and kept in memory.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple, Protocol

from nos_ec.core.encryption.envelope import KEY_NUMBER_MAX
from nos_ec.core.errors import ConfigError, Corrupt, InvalidInput, NosError, Transient
from nos_ec.core.ids import ACCESS_BUCKET
from nos_ec.engine.encryption.ciphers import KEY_BYTES
from nos_ec.gateway.auth.key_service import DEADLINE_S, KeyService
from nos_ec.gateway.auth.sealed_secrets import NONCE_BYTES, MasterKeys
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessKey, AccessKeys, AccessOf, KeyState

_PREFIX = "nos_ec:objects:"
"""The names of the records; a colon cannot be in the name of an access key."""
_NOTE = "encrypts objects"
_OF_KMS, _OF_SERVICE = "kms", "service"
_KMS_KEY = re.compile(r"[0-9A-Za-z_]([0-9A-Za-z_.-]{0,62}[0-9A-Za-z_])?")
"""The name of a KMS key, as Vault's transit engine accepts it."""
_CHECK_BYTES = 16
_PAGE = 100
REMEMBER_MS = 10_000
"""How long a process remembers which key is the newest, or that there is none."""
MISSED_MS = 1_000
"""How long a process remembers that it could not find a key, so that a listing of many objects with it costs one
look-up."""


def is_of_ring(access_key: str) -> bool:
    """Return whether this is the name of a record of a key ring, and not of an access key."""
    return access_key.startswith(_PREFIX)


def check_kms_key(name: str) -> str:
    """Return the name of a KMS key. Raises InvalidInput."""
    if not _KMS_KEY.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not the name of a KMS key: it has 1 to 64 letters, digits, '_', '-' and '.', and begins and"
            " ends with a letter, a digit or '_'"
        )
    return name


class _Wrapped(NamedTuple):
    """A key as the key service has encrypted it, and its MAC in hexadecimal, which is empty if the record lacks it."""

    text: str
    check: str

    def fits(self, number: int, key: bytes) -> bool:
        """Return whether this may be the key."""
        return len(key) == KEY_BYTES and (not self.check or hmac.compare_digest(self.check, _check(number, key)))


class RingMetadata(AccessKeys, Protocol):
    """The parts of the metadata that a key ring needs."""

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """See `Objects.list_names`."""


class KeyRing:
    """The keys of one store. Safe to call from several threads."""

    def __init__(
        self, metadata: RingMetadata, masters: MasterKeys, clock: Clock, service: KeyService | None = None
    ) -> None:
        self._metadata = metadata
        self._masters = masters
        self._clock = clock
        self._service = service
        self._lock = Lock()
        self._unwrapping = Lock()
        self._wrapped: dict[int, _Wrapped] = {}
        self._known: dict[int, bytes] = {}
        self._kms_keys: dict[int, str] = {}
        self._unreadable: dict[int, NosError] = {}
        self._looked_ms: int | None = None
        self._missed_ms: int | None = None

    def newest(self) -> tuple[int, bytes] | None:
        """Return the key that encrypts new objects without a KMS key, with its number; None if the store has none. A
        key that another process adds is seen after REMEMBER_MS at the latest. Raises ConfigError, Corrupt,
        Transient."""
        with self._lock:
            self._look_up_sometimes()
            of_store = {*self._known, *self._unreadable}.difference(self._kms_keys)
            return (number := max(of_store), self._found(number)) if of_store else None

    def newest_of_kms(self, kms_key: str | None) -> tuple[int, bytes] | None:
        """Return the key that encrypts new objects with this KMS key, with its number; None if the store does not know
        the KMS key. For None it is the KMS key that was added last. It remembers as `newest` does, and raises the
        same."""
        with self._lock:
            self._look_up_sometimes()
            numbers = [number for number, name in self._kms_keys.items() if kms_key in (None, name)]
            # A newer key that cannot be opened may be of this KMS key, and must not be replaced by another one.
            if (unreadable := max(self._unreadable, default=0)) > max(numbers, default=0):
                raise self._unreadable[unreadable]
        return (number := max(numbers), self.key(number)) if numbers else None

    def kms_key(self, number: int) -> str | None:
        """Return the name of the KMS key to which the key of this number belongs; None if it belongs to none. Raises
        what `key` raises, but does not call the key service."""
        if number not in self._known and number not in self._wrapped:
            with self._lock:
                self._look_for(number)
                if number not in self._wrapped:
                    self._found(number)
        return self._kms_keys.get(number)

    def has_keys(self) -> bool:
        """Return whether the store has keys, also if none of them can be opened. It remembers as `newest` does. Raises
        Transient, and Corrupt if the name of a record is damaged."""
        with self._lock:
            self._look_up_sometimes()
            return bool(self._known or self._wrapped or self._unreadable)

    def require_all(self) -> None:
        """Raise ConfigError if a key needs another master key, Corrupt if one is damaged, Transient."""
        with self._lock:
            self._look_up()
            for error in self._unreadable.values():
                raise error

    def _look_up_sometimes(self) -> None:
        now_ms = self._clock.now_ms()
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < REMEMBER_MS:
            self._look_up()
            self._looked_ms = now_ms

    def key(self, number: int) -> bytes:
        """Return the key of this number. Raises ConfigError if it needs another master key, Corrupt if there is no such
        key, Transient, also if the key service cannot be asked."""
        with self._lock:
            self._look_for(number)
            wrapped = self._wrapped.get(number)
            if wrapped is None or number in self._known:
                return self._found(number)
        # Other requests use the keys that are known meanwhile.
        if not self._unwrapping.acquire(timeout=DEADLINE_S):
            raise Transient("the key service is slow to answer")
        try:
            return self._known[number] if number in self._known else self._unwrapped(number, wrapped)
        finally:
            self._unwrapping.release()

    def _look_for(self, number: int) -> None:
        if number in self._known or number in self._wrapped:
            return
        now_ms = self._clock.now_ms()
        if self._missed_ms is None or not 0 <= now_ms - self._missed_ms < MISSED_MS:
            self._look_up()
            self._missed_ms = None if number in self._known or number in self._wrapped else now_ms

    def _unwrapped(self, number: int, wrapped: _Wrapped) -> bytes:
        key = self._require_service().unwrap(self._kms_keys[number], wrapped.text, partial(wrapped.fits, number))
        self._known[number] = key
        return key

    def _require_service(self) -> KeyService:
        if self._service is None:
            raise ConfigError("a key of the store needs the key service: set s3.kms_url", settings=("s3.kms_url",))
        return self._service

    def wrap_again(self, random: Callable[[int], bytes]) -> int:
        """Let the key service encrypt all of its keys again, with the newest versions of the KMS keys. Returns how many
        were changed. A key that the service refuses does not stop the others; its error is raised at the end. It may be
        repeated. Raises ConfigError, Corrupt, Transient."""
        with self._lock:
            self._look_up()
            wrapped = dict(self._wrapped)
        changed, failure = 0, None
        for number, old in wrapped.items():
            try:
                changed += self._wrap_one_again(number, old, random)
            except NosError as error:  # the other keys can still be changed
                failure = failure or error
        if failure is not None:
            raise failure
        return changed

    def _wrap_one_again(self, number: int, old: _Wrapped, random: Callable[[int], bytes]) -> bool:
        service, kms_key = self._require_service(), self._kms_keys[number]
        new = service.wrap_again(kms_key, old.text)
        record = self._metadata.access_key(_name(number))
        if record is None or (old.check and new.split(":")[1] == old.text.split(":")[1]):
            return False
        # The old record is the only one, and running processes would not notice that the new one is wrong.
        key = service.unwrap(kms_key, old.text, partial(old.fits, number))
        if service.unwrap(kms_key, new) != key:
            raise Corrupt(f"key {number} of the store: the key service returned another key; the record stays as it is")
        secret = _secret_of_service(number, kms_key, new, key)
        sealed = self._masters.seal(record.access_key, secret, random(NONCE_BYTES))
        return self._metadata.change_access_key(record.access_key, secret=sealed, instead_of=record.secret)

    def _found(self, number: int) -> bytes:
        if number in self._known:
            return self._known[number]
        if number in self._unreadable:
            raise self._unreadable[number]
        raise Corrupt(f"key {number} of the store is missing; restore it with the metadata (docs/S3.md)")

    def add(
        self, random: Callable[[int], bytes], kms_key: str | None = None, *, despite_unreadable: bool = False
    ) -> int:
        """Add a key, which encrypts all objects of this KMS key, or those without one, from now on, and return its
        number. `random` returns cryptographically secure bytes. After an error it may be repeated. Raises ConfigError
        if a key cannot be opened, or is only in the store's own copy of the access records, unless
        `despite_unreadable`; Conflict if another process adds a key at the same time, Corrupt, InvalidInput for a wrong
        name or if there are no numbers left, Transient."""
        if kms_key is not None:
            check_kms_key(kms_key)
        with self._lock:
            self._look_up()
            recorded = self._recorded()
            lost = sorted(recorded.difference(self._known, self._wrapped, self._unreadable))
            if not despite_unreadable:
                self._require_whole(lost)
            for known in {*self._known, *self._wrapped}:
                # The process that added it may have died before the store had its own copy of the record.
                self._metadata.change_access_key(_name(known), KeyState.DISABLED)
            # The number of a lost key is never given again: the record of the new key would replace that of the old
            # one, which may be the last copy.
            number = max([*self._known, *self._wrapped, *self._unreadable, *recorded], default=0) + 1
            if number > KEY_NUMBER_MAX:
                raise InvalidInput(f"the store has {KEY_NUMBER_MAX} keys that encrypt objects, which is the maximum")
            name, key = _name(number), random(KEY_BYTES)
            secret = key.hex() if kms_key is None else self._secret_of_kms(number, kms_key, key)
            sealed = self._masters.seal(name, secret, random(NONCE_BYTES))
            now_ms = self._clock.now_ms()
            self._metadata.add_access_key(AccessKey(name, ROOT_ACCOUNT, sealed, KeyState.DISABLED, now_ms, _NOTE))
            self._remember(number, key, kms_key)
            return number

    def _secret_of_kms(self, number: int, kms_key: str, key: bytes) -> str:
        if self._service is None:
            return f"{_OF_KMS} {kms_key} {key.hex()}"
        wrapped = self._service.wrap(kms_key, key)
        if self._service.unwrap(kms_key, wrapped) != key:
            raise Corrupt("the key service does not return the key that it was given")
        return _secret_of_service(number, kms_key, wrapped, key)

    def _remember(self, number: int, key: bytes | _Wrapped, kms_key: str | None) -> None:
        """Remember a key, or a wrapped one."""
        if kms_key is not None:
            self._kms_keys[number] = kms_key
        if isinstance(key, _Wrapped):
            self._wrapped[number] = key
        else:
            self._known[number] = key

    def _require_whole(self, lost: list[int]) -> None:
        """Raise ConfigError if keys were lost, or cannot be opened."""
        if lost:
            raise ConfigError(
                f"the metadata lost key {lost[0]}, which encrypts objects, but the store still has a record of it:"
                " rebuild the metadata, or restore the key from a backup, and then add a key; if it is lost for good,"
                " use --despite-unreadable-keys"
            )
        for number, error in sorted(self._unreadable.items()):
            settings = error.settings if isinstance(error, ConfigError) else ()
            raise ConfigError(
                f"key {number} cannot be opened: {error}; if it is lost for good, use --despite-unreadable-keys",
                settings=settings,
            )

    def _recorded(self) -> set[int]:
        """Return the numbers of the keys in the store's own records (engine/dump/access_records.py)."""
        found, folder = set[int](), f"{AccessOf.KEY}/"
        after = prefix = f"{folder}{_PREFIX}"
        while page := self._metadata.list_names(ACCESS_BUCKET, prefix, after, _PAGE):
            found |= {_number(name.removeprefix(folder)) for name in page}
            after = page[-1]
        return found

    def _look_up(self) -> None:
        after = _PREFIX
        while page := self._metadata.access_keys(after, _PAGE):
            for record in page:
                if not is_of_ring(record.access_key):
                    return
                number = _number(record.access_key)
                if number not in self._known and number not in self._wrapped:
                    self._unreadable.pop(number, None)
                    try:
                        self._remember(number, *self._opened(record))
                    except NosError as error:
                        self._unreadable[number] = error  # the other keys can still be used
            after = page[-1].access_key

    def _opened(self, record: AccessKey) -> tuple[bytes | _Wrapped, str | None]:
        try:
            words = self._masters.open(record.access_key, record.secret).split(" ")
            if len(words) in (3, 4) and words[0] == _OF_SERVICE:
                return _Wrapped(words[2], "".join(words[3:])), words[1]
            *of_kms, text = words
            key = bytes.fromhex(text)
        except ConfigError as error:
            raise ConfigError(
                "a key that encrypts objects was encrypted with another master key: add that master key as a further"
                " line to the file of s3.master_key_file; without it, encrypted objects cannot be read",
                settings=error.settings,
            ) from None
        except ValueError:
            of_kms, key = [], b""
        is_known_form = not of_kms or (len(of_kms) == 2 and of_kms[0] == _OF_KMS)
        if len(key) != KEY_BYTES or not is_known_form:
            raise Corrupt(f"{record.access_key}: the key is damaged, or a newer version of nos-ec added it")
        return key, of_kms[1] if of_kms else None


def _secret_of_service(number: int, kms_key: str, wrapped: str, key: bytes) -> str:
    return f"{_OF_SERVICE} {kms_key} {wrapped} {_check(number, key)}"


def _check(number: int, key: bytes) -> str:
    return hmac.digest(key, b"wrapped " + _name(number).encode(), "sha256")[:_CHECK_BYTES].hex()


def _name(number: int) -> str:
    return f"{_PREFIX}{number:05}"


def _number(name: str) -> int:
    text = name.removeprefix(_PREFIX)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= KEY_NUMBER_MAX:
        raise Corrupt(f"{name} is not the name of a key of the store")
    return int(text)
