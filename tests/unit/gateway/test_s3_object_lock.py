"""Periods and dates of object lock, as S3 writes and reads them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.gateway.message.request_facts import RequestFacts
from nos_ec.s3.conditions.keys import KEYS, NamedKey, Unsure
from nos_ec.s3.errors import S3Error
from nos_ec.s3.object_lock import (
    MODE,
    UNTIL,
    DefaultRetention,
    LockConfiguration,
    Retention,
    date_text,
    legal_hold,
    lock_configuration,
    lock_configuration_answer,
    retention,
    retention_answer,
    retention_of_headers,
)
from nos_ec.s3.request import Request


def at(text: str) -> int:
    """Unix milliseconds of a date."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("start", "period", "end"),
    [
        ("2024-01-31T01:02:03", DefaultRetention("COMPLIANCE", 1, False), "2024-02-01T01:02:03"),
        ("2024-02-29T01:02:03", DefaultRetention("COMPLIANCE", 1, True), "2025-03-01T01:02:03"),
        ("2023-03-01T01:02:03", DefaultRetention("COMPLIANCE", 1, True), "2024-03-01T01:02:03"),
        ("2024-02-29T01:02:03", DefaultRetention("COMPLIANCE", 4, True), "2028-02-29T01:02:03"),
    ],
)
def test_when_a_default_retention_ends(start: str, period: DefaultRetention, end: str) -> None:
    assert period.until_ms(at(start)) == at(end)


@given(
    st.one_of(
        st.none(),
        st.builds(DefaultRetention, st.sampled_from(["GOVERNANCE", "COMPLIANCE"]), st.integers(1, 100), st.booleans()),
    )
)
def test_a_stored_configuration_reads_back(default: DefaultRetention | None) -> None:
    configuration = LockConfiguration(default)
    assert lock_configuration(lock_configuration_answer(configuration)) == configuration


@given(st.integers(0, 253_402_300_799_999))
def test_a_date_reads_back(until_ms: int) -> None:
    found = Retention("COMPLIANCE", until_ms)
    assert retention(retention_answer(found)) == found
    assert retention_of_headers("COMPLIANCE", date_text(until_ms)) == found


def test_a_date_is_rounded_up_and_in_utc_without_a_zone() -> None:
    for text in ("2030-01-31T00:00:00.0000001", "2030-01-31T01:00:00.000001+01:00"):
        found = retention_of_headers("GOVERNANCE", text)
        assert found is not None
        assert found.until_ms in (at("2030-01-31T00:00:00"), at("2030-01-31T00:00:00") + 1)
    found = retention_of_headers("GOVERNANCE", "2030-01-31T00:00:00.000001Z")
    assert found == Retention("GOVERNANCE", at("2030-01-31T00:00:00") + 1)


@pytest.mark.parametrize(
    "text", ["9999-12-31T23:59:59.9999Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"]
)
def test_no_retention_ends_where_the_calendar_of_answers_does_not_reach(text: str) -> None:
    with pytest.raises(S3Error, match="InvalidArgument"):
        retention_of_headers("COMPLIANCE", text)
    body = f"<Retention><Mode>COMPLIANCE</Mode><RetainUntilDate>{text}</RetainUntilDate></Retention>"
    with pytest.raises(S3Error, match="MalformedXML"):
        retention(body.encode())


def facts(operation: str, until: str | None, sent: dict[str, str] | None = None) -> RequestFacts:
    """What is known about a request of 31 January 2030 that sets this retention in headers."""
    headers = [] if until is None else [(MODE.encode(), b"GOVERNANCE"), (UNTIL.encode(), until.encode())]
    request = Request("PUT", b"/locked/k", b"", headers, "https", "192.0.2.1")
    return RequestFacts(request, operation, operation, "ann", None, "ann", at("2030-01-31T00:00:00"), None, {}, sent)


@pytest.mark.parametrize(
    ("until", "days"),
    [
        ("2030-02-10T00:00:00Z", "10"),
        ("2030-02-10T00:00:00.001Z", "11"),
        ("2030-02-09T23:59:59Z", "10"),
        ("2030-02-10T01:00:00+01:00", "10"),
        ("2030-01-31T00:00:01Z", "1"),
        ("2030-01-30T00:00:00Z", "-1"),
    ],
)
def test_the_days_that_a_retention_lasts(until: str, days: str) -> None:
    key = NamedKey(KEYS["s3:object-lock-remaining-retention-days"])
    assert facts("PutObject", until).values(key) == (days,)
    assert facts("PutObjectRetention", None).values(key) is Unsure.LATER
    assert facts("PutObjectRetention", None, {MODE: "GOVERNANCE", UNTIL: until}).values(key) == (days,)
    assert facts("PutObject", None).values(key) == facts("PutObjectRetention", until, {}).values(key) == ()
    assert facts("DeleteObject", until).values(key) == (), "the header has no effect there"
    assert facts("UploadPart", until).values(key) is Unsure.EARLIER


@pytest.mark.parametrize(
    "body",
    [
        b"<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>tomorrow</RetainUntilDate></Retention>",
        b"<Retention><Mode>GOVERNANCE</Mode><Mode>GOVERNANCE</Mode></Retention>",
        b"<Retention><Other/></Retention>",
        b"<Retention><Mode><x/></Mode><RetainUntilDate>2030-01-31T00:00:00Z</RetainUntilDate></Retention>",
    ],
)
def test_malformed_retentions(body: bytes) -> None:
    with pytest.raises(S3Error, match="MalformedXML"):
        retention(body)


def test_malformed_legal_holds() -> None:
    for body in (b"<LegalHold/>", b"<LegalHold><Status>on</Status></LegalHold>"):
        with pytest.raises(S3Error, match="MalformedXML"):
            legal_hold(body)
