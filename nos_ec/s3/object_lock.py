"""Object lock configurations, retentions and legal holds, read from and written as XML and headers.

Sources: PutObjectLockConfiguration, PutObjectRetention, PutObjectLegalHold and their data types in the S3 API
reference; "Locking objects with Object Lock" of the S3 user guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from nos_ec.s3 import answers
from nos_ec.s3.documents import Element, malformed, parse, unique_children
from nos_ec.s3.errors import S3Error, invalid_argument

MODE, UNTIL, HOLD = (
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-object-lock-legal-hold",
)
"""The headers of a lock, in requests and in answers."""
MODES = ("GOVERNANCE", "COMPLIANCE")
DAYS_MAX, YEARS_MAX = 36_500, 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DefaultRetention(NamedTuple):
    """The retention that a bucket gives to new versions: `number` days, or years if `in_years`, from their PUT."""

    mode: str
    number: int
    in_years: bool

    def until_ms(self, start_ms: int) -> int:
        """Return the end of a retention that starts then, in Unix milliseconds. A year ends on the same date, and on
        1 March after 29 February."""
        start = _EPOCH + timedelta(milliseconds=start_ms)
        if not self.in_years:
            return _in_ms(start + timedelta(days=self.number))
        year = start.year + self.number
        try:
            return _in_ms(start.replace(year=year))
        except ValueError:
            return _in_ms(start.replace(year=year, month=3, day=1))


@dataclass(frozen=True, slots=True)
class LockConfiguration:
    """The object lock of a bucket, with the retention of versions whose PUT sets none. `is_readable` is False if the
    stored configuration cannot be read, so that the default retention is unknown."""

    default: DefaultRetention | None = None
    is_readable: bool = True


class Retention(NamedTuple):
    """The retention of a version until `until_ms` (Unix milliseconds)."""

    mode: str
    until_ms: int


def lock_configuration(body: bytes) -> LockConfiguration:
    """Parse the body of PutObjectLockConfiguration. Raises MalformedXML, or InvalidRetentionPeriod for a
    period that is not positive or too long."""
    fields = unique_children(parse(body, "ObjectLockConfiguration"), "ObjectLockEnabled", "Rule")
    if "ObjectLockEnabled" not in fields or _text(fields["ObjectLockEnabled"]) != "Enabled":
        raise malformed("ObjectLockEnabled is Enabled.")
    if "Rule" not in fields:
        return LockConfiguration()
    rule = unique_children(fields["Rule"], "DefaultRetention")
    if "DefaultRetention" not in rule:
        raise malformed("A Rule has a DefaultRetention.")
    retention = unique_children(rule["DefaultRetention"], "Mode", "Days", "Years")
    has_period = ("Days" in retention) is not ("Years" in retention)
    if "Mode" not in retention or _text(retention["Mode"]) not in MODES or not has_period:
        raise malformed("A DefaultRetention has a Mode, GOVERNANCE or COMPLIANCE, and either Days or Years.")
    in_years = "Years" in retention
    text = _text(retention["Years" if in_years else "Days"])
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit():
        raise malformed("Days and Years are whole numbers.")
    number, most = int(text) if len(text) < 10 else 10**9, YEARS_MAX if in_years else DAYS_MAX
    if not 1 <= number <= most:
        raise S3Error("InvalidRetentionPeriod", f"The default retention period must be from 1 to {most}.")
    return LockConfiguration(DefaultRetention(_text(retention["Mode"]), number, in_years))


def lock_configuration_answer(configuration: LockConfiguration) -> bytes:
    """Answer GetObjectLockConfiguration. The result is also the stored document of a bucket."""
    default = configuration.default
    if default is None:
        return answers.object_lock_configuration(None)
    unit = "Years" if default.in_years else "Days"
    return answers.object_lock_configuration((default.mode, unit, str(default.number)))


def retention(body: bytes) -> Retention | None:
    """Parse the body of PutObjectRetention; None for one that removes the retention. Raises MalformedXML."""
    fields = unique_children(parse(body, "Retention"), "Mode", "RetainUntilDate")
    if not fields:
        return None
    if len(fields) < 2 or _text(fields["Mode"]) not in MODES:
        raise malformed("A Retention has a Mode, GOVERNANCE or COMPLIANCE, and a RetainUntilDate.")
    until_ms = _time_of(_text(fields["RetainUntilDate"]))
    if until_ms is None:
        raise malformed("RetainUntilDate is a time of ISO 8601, such as 2030-01-31T00:00:00Z.")
    return Retention(_text(fields["Mode"]), until_ms)


def retention_answer(found: Retention) -> bytes:
    """Answer GetObjectRetention."""
    return answers.configuration("Retention", ("Mode", found.mode), ("RetainUntilDate", date_text(found.until_ms)))


def legal_hold(body: bytes) -> bool:
    """Parse the body of PutObjectLegalHold. Returns whether there is to be a hold. Raises MalformedXML."""
    fields = unique_children(parse(body, "LegalHold"), "Status")
    status = _text(fields["Status"]) if fields else ""
    if status not in ("ON", "OFF"):
        raise malformed("The Status of a LegalHold is ON or OFF.")
    return status == "ON"


def legal_hold_answer(hold: bool) -> bytes:
    """Answer GetObjectLegalHold."""
    return answers.configuration("LegalHold", ("Status", "ON" if hold else "OFF"))


def retention_of_headers(mode: str | None, until: str | None) -> Retention | None:
    """Return the retention in the headers of a PUT; None without one. Raises InvalidArgument."""
    if mode is None and until is None:
        return None
    if mode is None or until is None:
        raise invalid_argument(
            "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied",
            MODE if mode is None else UNTIL,
        )
    if mode not in MODES:
        raise invalid_argument("Unknown wormMode directive.", MODE, mode)
    until_ms = _time_of(until)
    if until_ms is None:
        raise invalid_argument(
            "The retain until date is not a time of ISO 8601, such as 2030-01-31T00:00:00Z.", UNTIL, until
        )
    return Retention(mode, until_ms)


def retention_headers(found: Retention | None) -> dict[str, str]:
    """Return the headers that show a retention; none without one."""
    return {} if found is None else {MODE: found.mode, UNTIL: date_text(found.until_ms)}


def hold_of_header(status: str | None) -> bool:
    """Return whether the header of a PUT sets a legal hold. Raises InvalidArgument."""
    if status not in (None, "ON", "OFF"):
        raise invalid_argument("Legal Hold must be either of 'ON' or 'OFF'", HOLD, status)
    return status == "ON"


def date_text(at_ms: int) -> str:
    """Return a time as S3 writes it in retentions."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time_of(text: str) -> int | None:
    """Return a time of ISO 8601 in Unix milliseconds, rounded up; None if it is not valid. One without a time zone is
    in UTC."""
    try:
        found = datetime.fromisoformat(text)
        at_ms = _in_ms(found if found.tzinfo is not None else found.replace(tzinfo=UTC))
        date_text(
            at_ms
        )  # raises OverflowError if the year 9999 in UTC has ended, so that no answer could name the time
    except (ValueError, OverflowError):
        return None
    return at_ms


def _in_ms(at: datetime) -> int:
    return -((_EPOCH - at) // timedelta(milliseconds=1))


def _text(element: Element) -> str:
    if element.children:
        raise malformed(f"{element.name!r} has elements inside.")
    return element.text.strip()
