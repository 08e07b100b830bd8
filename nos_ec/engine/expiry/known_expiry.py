"""The times at which objects will expire by the lifecycle rules of their bucket.

The packer packs objects together that expire together, so that all objects of a block die at the same time
(docs/adr/0035). Exports of events use the times as well.

9  memory holds at most RULES_KNOWN_MAX rules
"""

from __future__ import annotations

import structlog

from nos_ec.core.errors import Corrupt, NosError
from nos_ec.core.expiry import BucketRules, decode_rules, tags_of
from nos_ec.engine.packable import Packable
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import Buckets, DocumentKind, ObjectRow

REFRESH_MS = 300_000
"""The greatest age of the rules that a packer uses."""
RULES_KNOWN_MAX = 20_000
"""About 10 MB. Objects of the remaining buckets are packed by their expected lifetimes."""
_PAGE = 20

_log = structlog.get_logger(__name__)


class KnownExpiry:
    """The rules of all buckets, at most REFRESH_MS old. Belongs to one thread. day_ms: the length of a day in rules."""

    def __init__(self, metadata: Buckets, day_ms: int) -> None:
        self._metadata = metadata
        self._day_ms = day_ms
        self._next_ms = 0
        self._rules: dict[str, BucketRules] = {}

    def expires_ms(self, one: Packable | ObjectRow, born_ms: int, now_ms: int) -> int | None:
        """Return when an object that was PUT at `born_ms` will expire, or None if no rule applies to it. Uses the last
        known rules while the metadata store does not answer."""
        if not waits(self._next_ms, now_ms, REFRESH_MS):
            self._next_ms = now_ms + REFRESH_MS
            self._refresh()
        rules = self._rules.get(one.key.bucket)
        if rules is None:
            return None
        expiry = rules.expiry(one.key.name, one.size, lambda: tags_of(one.attributes), born_ms)
        return None if expiry is None else expiry.due_ms

    def _refresh(self) -> None:
        found: dict[str, BucketRules] = {}
        known, after = 0, ""
        try:
            while page := self._metadata.documents_of(DocumentKind.LIFECYCLE, after, _PAGE):
                for bucket, body in page:
                    try:
                        rules = decode_rules(body)
                    except Corrupt as error:
                        _log.warning("lifecycle rules not read", bucket=bucket, error=str(error))
                        continue
                    known += len(rules)
                    if known > RULES_KNOWN_MAX:
                        _log.warning("too many lifecycle rules; packing ignores those of some buckets", rules=known)
                        self._rules = found
                        return
                    found[bucket] = BucketRules(rules, self._day_ms)
                after = page[-1][0]
        except NosError as error:
            _log.warning("lifecycle rules not read; packing uses the last known ones", error=str(error))
            return
        self._rules = found
