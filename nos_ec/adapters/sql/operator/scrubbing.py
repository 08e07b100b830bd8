"""The progress of scrubs: a row of `stored_totals`, as JSON. It is changed by compare-and-set of its whole text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.schema import STORED_TOTALS
from nos_ec.core.ids import BlockId
from nos_ec.ports.metadata import ScrubPass, ScrubState

_T = STORED_TOTALS.c
_IS_SCRUB = _T.name == "scrub"
STORED = select(_T.value).where(_IS_SCRUB)


class SqlScrubbing(SqlPart):
    """`Scrubbing` of the port."""

    @reads
    def scrub_state(self, connection: Connection) -> ScrubState | None:
        text = connection.execute(STORED).scalar()
        return None if text is None else _loaded(text)

    @writes
    def store_scrub_state(self, connection: Connection, new: ScrubState, expected: ScrubState | None) -> bool:
        if expected is not None:
            same = (_IS_SCRUB, _T.value == _dumped(expected))
            return connection.execute(update(STORED_TOTALS).where(*same).values(value=_dumped(new))).rowcount == 1
        text = connection.execute(STORED).scalar()
        if text is not None:
            if _loaded(text) is not None:
                return False
            connection.execute(delete(STORED_TOTALS).where(_IS_SCRUB, _T.value == text))
        connection.execute(insert(STORED_TOTALS).values(name="scrub", value=_dumped(new)))
        return True


def _dumped(state: ScrubState) -> str:
    """Return the JSON text, which is the same for equal values."""
    after = None if state.after is None else state.after.hex()
    return json.dumps(asdict(state) | {"after": after}, sort_keys=True)


def _loaded(text: str) -> ScrubState | None:
    """Parse the text. Return None unless `_dumped` of this release could have written it, because compare-and-set could
    never replace other texts."""
    try:
        data: dict[str, Any] = json.loads(text)
        after = None if data["after"] is None else BlockId(bytes.fromhex(data["after"]))
        found = ScrubState(_pass(data["current"]), after, _pass(data["last"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    numbers = [value for one in (found.current, found.last) if one is not None for value in asdict(one).values()]
    return found if all(type(number) is int for number in numbers) and _dumped(found) == text else None


def _pass(data: dict[str, Any] | None) -> ScrubPass | None:
    return None if data is None else ScrubPass(**data)
