"""Listings of objects."""

from __future__ import annotations

import base64
from binascii import Error as BadBase64

from nos_ec.engine.store import Store
from nos_ec.gateway.call import Call
from nos_ec.gateway.object_headers import STORAGE_CLASS, attributes_of, checksum_of, etag_of
from nos_ec.gateway.reply import Reply, xml
from nos_ec.ports.metadata import EntryPage, ObjectRow, Rights
from nos_ec.s3 import answers
from nos_ec.s3.answers import Listed, Page
from nos_ec.s3.errors import S3Error

KEYS_MAX = 1000
PAGE_MS_MAX = 1000
"""How long a page may take to be found. It may then have fewer entries than were asked for, as S3 allows."""


class Listings:
    """Safe to call from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_objects(self, call: Call) -> Reply:
        """Version 1."""
        marker = call.request.parameter("marker") or ""
        page, entries = self._page(call, marker)
        next_marker = entries.next_after if page.delimiter or not entries.rows else None
        return xml(answers.list_objects(page, marker, next_marker, call.owner))

    def list_objects_v2(self, call: Call) -> Reply:
        """Version 2. A token is the last name, in base64. An empty one is none, as Ceph's RGW has it."""
        token, start_after = call.request.parameter("continuation-token"), call.request.parameter("start-after")
        after = _name_of(token) if token else start_after or ""
        page, entries = self._page(call, after)
        owner = call.owner if (call.request.parameter("fetch-owner") or "").lower() == "true" else None
        next_token = None if entries.next_after is None else _token_of(entries.next_after)
        return xml(
            answers.list_objects_v2(page, token=token, next_token=next_token, start_after=start_after, owner=owner)
        )

    def list_object_versions(self, call: Call) -> Reply:
        """Of an unversioned bucket: each object is its only version."""
        key_marker = call.request.parameter("key-marker") or ""
        version_marker = call.request.parameter("version-id-marker") or ""
        if version_marker and not key_marker:
            raise _bad("version-id-marker", "A version-id marker cannot be specified without a key marker.")
        page, entries = self._page(call, key_marker)
        return xml(
            answers.list_object_versions(
                page,
                key_marker=key_marker,
                version_marker=version_marker,
                next_key_marker=entries.next_after,
                next_version_marker=None if entries.next_after is None else "null",
                owner=call.owner,
            )
        )

    def _page(self, call: Call, after: str) -> tuple[Page, EntryPage]:
        call.require(Rights.LIST)
        prefix, delimiter = call.request.parameter("prefix") or "", call.request.parameter("delimiter") or ""
        encoding = call.request.parameter("encoding-type")
        if encoding not in (None, "url"):
            raise _bad("encoding-type", "Invalid Encoding Method specified in Request")
        limit = call.number("max-keys", KEYS_MAX, KEYS_MAX)
        entries = EntryPage([], None)
        if limit:
            entries = self._store.list_entries(call.bucket, prefix, delimiter, after, limit, PAGE_MS_MAX)
        page = Page(
            bucket=call.bucket,
            prefix=prefix,
            delimiter=delimiter,
            max_keys=limit,
            truncated=entries.next_after is not None,
            objects=[_listed(row) for row in entries.rows],
            folders=entries.folders,
            encode=encoding == "url",
        )
        return page, entries


def _listed(row: ObjectRow) -> Listed:
    if not row.attributes:
        return Listed(row.key.name, row.created_ms, etag_of(row), row.size)
    attributes = attributes_of(row)
    checksum = checksum_of(attributes)
    return Listed(
        row.key.name,
        row.created_ms,
        etag_of(row),
        row.users_size,
        attributes.get(STORAGE_CLASS, "STANDARD"),
        None if checksum is None else checksum.algorithm,
        None if checksum is None else checksum.kind,
    )


def _token_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _name_of(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (BadBase64, ValueError):
        raise _bad("continuation-token", "The continuation token provided is incorrect") from None


def _bad(name: str, message: str) -> S3Error:
    return S3Error("InvalidArgument", message, ArgumentName=name)
