"""Lists objects and their versions."""

from __future__ import annotations

import base64
from binascii import Error as BadBase64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nos_ec.core.errors import NotFound
from nos_ec.core.parts import users_attributes
from nos_ec.core.versions import VERSION_MAX
from nos_ec.engine.wide.listings import Lists
from nos_ec.gateway.message.call import Call, object_key
from nos_ec.gateway.message.encryption import Encryption
from nos_ec.gateway.message.object_headers import CHECKSUM, STORAGE_CLASS, checksum_of, etag
from nos_ec.gateway.message.reply import Reply, xml
from nos_ec.gateway.message.versions import id_of, number_of
from nos_ec.ports.metadata import EntryPage, ObjectSummary, Rights, VersionEntry, VersionPage, summary
from nos_ec.s3 import answers
from nos_ec.s3.answers import Listed, Page
from nos_ec.s3.errors import invalid_argument

KEYS_MAX = 1000
PAGE_MS_MAX = 1000
"""Maximum time of a search for a page. The page may then have fewer entries than requested, as S3 allows."""


class Listings:
    """The operations that list objects. Safe to call from several threads."""

    def __init__(self, store: Lists, encryption: Encryption) -> None:
        self._store = store
        self._encryption = encryption

    def list_objects(self, call: Call) -> Reply:
        """List objects with version 1 of the operation."""
        marker = call.request.parameter("marker") or ""
        page, entries = self._page(call, marker)
        next_marker = entries.next_after if page.delimiter or not entries.objects else None
        return xml(answers.list_objects(page, marker, next_marker, call.owner))

    def list_objects_v2(self, call: Call) -> Reply:
        """List objects with version 2 of the operation. A token is the last name in base64; an empty token is ignored,
        as in Ceph's RGW."""
        token, start_after = call.request.parameter("continuation-token"), call.request.parameter("start-after")
        after = _name_of(token) if token else start_after or ""
        page, entries = self._page(call, after)
        owner = call.owner if (call.request.parameter("fetch-owner") or "").lower() == "true" else None
        next_token = None if entries.next_after is None else _token_of(entries.next_after)
        return xml(
            answers.list_objects_v2(page, token=token, next_token=next_token, start_after=start_after, owner=owner)
        )

    def list_object_versions(self, call: Call) -> Reply:
        """List all versions and delete markers. In a bucket that never had versions, each object is one version,
        `null`."""
        key_marker = call.request.parameter("key-marker") or ""
        version_marker = call.request.parameter("version-id-marker") or ""
        if version_marker and not key_marker:
            raise invalid_argument("A version-id marker cannot be specified without a key marker.", "version-id-marker")
        wanted = self._parameters(call)
        found = VersionPage([], None)
        if wanted.limit:
            after = self._after(call, key_marker, version_marker)
            found = self._store.list_versions(
                call.bucket, wanted.prefix, wanted.delimiter, after, wanted.limit, PAGE_MS_MAX
            )
        versions = [entry for entry in found.entries if isinstance(entry, VersionEntry)]
        folders = [entry for entry in found.entries if isinstance(entry, str)]
        last = versions[-1] if found.next_after is not None and not isinstance(found.entries[-1], str) else None
        return xml(
            answers.list_object_versions(
                wanted.page([self._listed_version(entry) for entry in versions], folders, found.next_after is not None),
                key_marker=key_marker,
                version_marker=version_marker,
                next_key_marker=None if found.next_after is None else found.next_after[0],
                next_version_marker=None if last is None else id_of(last),
                owner=call.owner,
            )
        )

    def _after(self, call: Call, key_marker: str, version_marker: str) -> tuple[str, int | None]:
        """Return after which key and version a listing starts. The null version has a number, too. If the null version
        was deleted, the listing starts again with the first version of the key."""
        if not version_marker:
            return key_marker, None
        number = number_of(version_marker)
        if number is None:
            number = VERSION_MAX
            with suppress(NotFound):
                number = self._store.version(object_key(call.bucket, key_marker), None).version
        return key_marker, number

    def _parameters(self, call: Call) -> _Parameters:
        call.require(Rights.LIST)
        prefix, delimiter = call.request.parameter("prefix") or "", call.request.parameter("delimiter") or ""
        encodes = call.encodes_names()
        limit = call.number("max-keys", KEYS_MAX, KEYS_MAX)
        return _Parameters(call.bucket, prefix, delimiter, limit, encodes)

    def _page(self, call: Call, after: str) -> tuple[Page, EntryPage[ObjectSummary]]:
        wanted = self._parameters(call)
        entries: EntryPage[ObjectSummary] = EntryPage([], None)
        if wanted.limit:
            entries = self._store.list_summaries(
                call.bucket, wanted.prefix, wanted.delimiter, after, wanted.limit, PAGE_MS_MAX
            )
        found = [self._listed(call.bucket, one) for one in entries.objects]
        return wanted.page(found, entries.folders, entries.next_after is not None), entries

    def _listed_version(self, entry: VersionEntry) -> Listed:
        shown: dict[str, Any] = {"version_id": id_of(entry), "latest": entry.is_latest}
        if entry.row is None:
            return Listed(entry.key.name, entry.created_ms, "", 0, delete_marker=True, **shown)
        row = entry.row
        of_row = summary(row.key.name, row.size, row.md5, row.created_ms, row.attributes)
        return self._listed(row.key.bucket, of_row)._replace(**shown)

    def _listed(self, bucket: str, one: ObjectSummary) -> Listed:
        kept = one.attributes
        if not kept:
            return Listed(one.name, one.created_ms, etag(one.md5, one.parts), one.size)
        listed = Listed(one.name, one.created_ms, self._encryption.etag_of_listed(bucket, one), one.size)
        if _STORAGE_CLASS not in kept and _CHECKSUM not in kept:
            return listed
        attributes = users_attributes(kept)
        checksum = checksum_of(attributes)
        return listed._replace(
            storage_class=attributes.get(STORAGE_CLASS, "STANDARD"),
            checksum_algorithm=None if checksum is None else checksum.algorithm,
            checksum_type=None if checksum is None else checksum.kind,
        )


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of all listings of objects. `encodes` is set by `encoding-type=url`."""

    bucket: str
    prefix: str
    delimiter: str
    limit: int
    encodes: bool

    def page(self, objects: Sequence[Listed], folders: Sequence[str], is_truncated: bool) -> Page:
        return Page(
            bucket=self.bucket,
            prefix=self.prefix,
            delimiter=self.delimiter,
            max_keys=self.limit,
            truncated=is_truncated,
            objects=objects,
            folders=folders,
            encode=self.encodes,
        )


_STORAGE_CLASS, _CHECKSUM = STORAGE_CLASS.encode(), CHECKSUM.encode()
"""The attributes that a listing shows."""


def _token_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _name_of(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (BadBase64, ValueError):
        raise invalid_argument("The continuation token provided is incorrect", "continuation-token") from None
