"""Cases of the test program of versitygw, written anew, for the areas whose numbers docs/S3.md gives.

Each case has the name that it has there, and the code of the error that AWS answers with; it is empty if the request
must succeed.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_ec.composition.wiring import System
from tests.service.s3.s3_gateway import SETTINGS, Gateway, serving

Case = tuple[str, str, Callable[[], object]]
"""The name of a case, the code of the error, and the request."""
NONE = {"Bucket": "none"}
PLAIN, LOCKED = {"Bucket": "photos"}, {"Bucket": "locked"}
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
SOON, LATER, PAST = (NOW + datetime.timedelta(days=days) for days in (1, 400, -1))


def code_of(request: Callable[[], object]) -> str:
    """The code of the error with which the request is answered; empty if it succeeds."""
    try:
        request()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def failed(*cases: Case) -> list[tuple[str, str, str]]:
    """Which cases fail: their names, the codes that they expect, and those that came."""
    return [(name, wanted, found) for name, wanted, request in cases if (found := code_of(request)) != wanted]


def sent(client: Any, method: str, **arguments: Any) -> Callable[[], object]:
    return lambda: getattr(client, method)(**arguments)


def with_body(client: Any, method: str, operation: str, body: bytes, **arguments: Any) -> Callable[[], object]:
    """A request with this body, whatever its arguments say."""

    def request() -> object:
        def replace(params: dict[str, Any], **_: Any) -> None:
            params["body"] = body

        client.meta.events.register_first(f"before-call.s3.{operation}", replace)
        try:
            return getattr(client, method)(**arguments)
        finally:
            client.meta.events.unregister(f"before-call.s3.{operation}", replace)

    return request


# --- websites -------------------------------------------------------------------------------------
INDEX: Mapping[str, Any] = {"IndexDocument": {"Suffix": "index.html"}}
ALL_TO: Mapping[str, Any] = {"RedirectAllRequestsTo": {"HostName": "example.com", "Protocol": "https"}}
ELSEWHERE = {"HostName": "example.com"}


@pytest.fixture
def websites(system: System) -> Iterator[Gateway]:
    with serving(system, SETTINGS.model_copy(update={"website_domains": "web.example.com"})) as running:
        yield running


def test_configurations_of_websites(websites: Gateway) -> None:
    """PutBucketWebsite (17 cases), GetBucketWebsite (4), DeleteBucketWebsite (2)."""
    ann = websites.client("ann")
    ann.create_bucket(**PLAIN)

    def put(configuration: Mapping[str, Any], **bucket: str) -> Callable[[], object]:
        return sent(ann, "put_bucket_website", **{**PLAIN, **bucket}, WebsiteConfiguration=configuration)

    def rules(*listed: Mapping[str, Any]) -> Callable[[], object]:
        return put({**INDEX, "RoutingRules": list(listed)})

    def redirect(**fields: str) -> Callable[[], object]:
        return rules({"Redirect": {**ELSEWHERE, **fields}})

    def on_error(status: str) -> Callable[[], object]:
        return rules({"Condition": {"HttpErrorCodeReturnedEquals": status}, "Redirect": ELSEWHERE})

    long = "a" * 2048
    raw = ("put_bucket_website", "PutBucketWebsite")
    no_key = b"<WebsiteConfiguration><IndexDocument><Suffix>i</Suffix></IndexDocument><ErrorDocument><Key></Key>"
    no_key += b"</ErrorDocument></WebsiteConfiguration>"
    assert not failed(
        (
            "GetBucketWebsite_no_such_website_config",
            "NoSuchWebsiteConfiguration",
            sent(ann, "get_bucket_website", **PLAIN),
        ),
        ("DeleteBucketWebsite_success", "", sent(ann, "delete_bucket_website", **PLAIN)),
        ("PutBucketWebsite_non_existing_bucket", "NoSuchBucket", put(INDEX, **NONE)),
        ("PutBucketWebsite_empty_suffix", "InvalidArgument", put({"IndexDocument": {"Suffix": ""}})),
        ("PutBucketWebsite_empty_configuration", "InvalidArgument", put({})),
        ("PutBucketWebsite_suffix_with_slash", "InvalidArgument", put({"IndexDocument": {"Suffix": "/index.html"}})),
        (
            "PutBucketWebsite_invalid_redirect_protocol",
            "InvalidRequest",
            put({"RedirectAllRequestsTo": {**ELSEWHERE, "Protocol": "ftp"}}),
        ),
        *(
            ("PutBucketWebsite_redirectAll_index_error_routingRules", "MalformedXML", put({**ALL_TO, **more}))
            for more in (INDEX, {"ErrorDocument": {"Key": "e"}}, {"RoutingRules": [{"Redirect": ELSEWHERE}]})
        ),
        ("PutBucketWebsite_invalid_routing_rule_protocol", "InvalidRequest", redirect(Protocol="ftp")),
        (
            "PutBucketWebsite_empty_routing_rule_condition",
            "MalformedXML",
            rules({"Condition": {}, "Redirect": ELSEWHERE}),
        ),
        ("PutBucketWebsite_empty_routing_rule_redirect", "MalformedXML", rules({"Redirect": {}})),
        (
            "PutBucketWebsite_empty_error_document_key",
            "InvalidArgument",
            with_body(ann, *raw, no_key, **PLAIN, WebsiteConfiguration={}),
        ),
        ("PutBucketWebsite_too_many_routing_rules", "InvalidRequest", rules(*[{"Redirect": ELSEWHERE}] * 51)),
        (
            "PutBucketWebsite_routing_rule_replace_key_and_prefix",
            "InvalidRequest",
            redirect(ReplaceKeyWith="a", ReplaceKeyPrefixWith="b"),
        ),
        *(
            ("PutBucketWebsite_invalid_http_redirect_code", code, redirect(HttpRedirectCode=status))
            for status, code in [
                *((status, "InvalidRequest") for status in ("300", "306", "309", "399")),
                *((status, "MalformedXML") for status in ("jibberish", "3xx")),
            ]
        ),
        *(
            ("PutBucketWebsite_invalid_http_error_code", code, on_error(status))
            for status, code in [
                *((status, "InvalidRequest") for status in ("399", "418", "499", "506")),
                *((status, "MalformedXML") for status in ("jibberish", "4xx")),
            ]
        ),
        (
            "PutBucketWebsite_request_too_large",
            "MaxMessageLengthExceeded",
            rules(*[{"Redirect": {**ELSEWHERE, "ReplaceKeyWith": long}}] * 50),
        ),
        ("PutBucketWebsite_success_redirect_all", "", put(ALL_TO)),
        ("GetBucketWebsite_non_existing_bucket", "NoSuchBucket", sent(ann, "get_bucket_website", **NONE)),
        ("DeleteBucketWebsite_non_existing_bucket", "NoSuchBucket", sent(ann, "delete_bucket_website", **NONE)),
    )
    found = ann.get_bucket_website(**PLAIN)
    assert {name: found[name] for name in ALL_TO} == ALL_TO, "GetBucketWebsite_success_redirect_all"
    wanted = {**INDEX, "ErrorDocument": {"Key": "error.html"}}
    assert not failed(("PutBucketWebsite_success", "", put(wanted)))
    found = ann.get_bucket_website(**PLAIN)
    assert {name: found[name] for name in wanted} == wanted, "GetBucketWebsite_success"
    ann.delete_bucket_website(**PLAIN)
    assert code_of(sent(ann, "get_bucket_website", **PLAIN)) == "NoSuchWebsiteConfiguration"


def test_hosting_of_websites(websites: Gateway) -> None:
    """WebsiteHosting (7 cases). There all buckets of websites are open to everybody."""
    ann = websites.client("ann")
    ann.create_bucket(**PLAIN, ACL="public-read")

    def get(path: str, **configuration: Any) -> tuple[int, bytes, str | None]:
        ann.put_bucket_website(**PLAIN, WebsiteConfiguration=configuration)
        status, body, headers = websites.raw("GET", path, Host="photos.web.example.com")
        return status, body, headers.get("location")

    error: Any = {"ErrorDocument": {"Key": "error.html"}}
    ann.put_object(**PLAIN, Key="index.html", Body=b"welcome", ACL="public-read")
    assert get("/", **INDEX) == (200, b"welcome", None), "index_document"
    assert get("/none", **INDEX)[0] == 404, "no_error_document"
    assert get("/none", **INDEX, **error)[0] == 404, "error_document_not_found"
    ann.put_object(**PLAIN, Key="error.html", Body=b"sorry", ACL="public-read")
    assert get("/none", **INDEX, **error) == (404, b"sorry", None), "error_document_served"
    after: Any = {"HostName": "fallback.example.com", "ReplaceKeyWith": "not-found", "HttpRedirectCode": "302"}
    rule: Any = {"Condition": {"HttpErrorCodeReturnedEquals": "404"}, "Redirect": after}
    status, _, location = get("/missing", **INDEX, **error, RoutingRules=[rule])
    assert (status, location) == (302, "http://fallback.example.com/not-found"), "routing_rule_post_request_redirect"
    rule = {"Condition": {"KeyPrefixEquals": "old/"}, "Redirect": {"ReplaceKeyPrefixWith": "new/"}}
    status, _, location = get("/old/page", **INDEX, RoutingRules=[rule])
    assert (status, location) == (301, "http://photos.web.example.com/new/page"), "routing_rule_pre_request_redirect"
    status, _, location = get("/any/path", **ALL_TO)
    assert (status, location) == (301, "https://example.com/any/path"), "redirect_all_requests"


# --- ownership controls ---------------------------------------------------------------------------
def test_ownership_controls(ann: Any) -> None:
    """PutBucketOwnershipControls (5 cases), GetBucketOwnershipControls (3), DeleteBucketOwnershipControls (2)."""

    def put(*listed: str, **bucket: str) -> Callable[[], object]:
        controls = {"Rules": [{"ObjectOwnership": one} for one in listed]}
        return sent(ann, "put_bucket_ownership_controls", **{**PLAIN, **bucket}, OwnershipControls=controls)

    get, delete = "get_bucket_ownership_controls", "delete_bucket_ownership_controls"
    assert not failed(
        ("PutBucketOwnershipControls_non_existing_bucket", "NoSuchBucket", put("BucketOwnerPreferred", **NONE)),
        ("PutBucketOwnershipControls_multiple_rules", "MalformedXML", put("BucketOwnerPreferred", "ObjectWriter")),
        ("PutBucketOwnershipControls_invalid_ownership", "MalformedXML", put("invalid_ownership")),
        ("PutBucketOwnershipControls_empty_rules", "MalformedXML", put()),
        ("PutBucketOwnershipControls_success", "", put("ObjectWriter")),
        ("GetBucketOwnershipControls_non_existing_bucket", "NoSuchBucket", sent(ann, get, **NONE)),
        ("GetBucketOwnershipControls_success", "", sent(ann, get, **PLAIN)),
        ("DeleteBucketOwnershipControls_non_existing_bucket", "NoSuchBucket", sent(ann, delete, **NONE)),
        ("DeleteBucketOwnershipControls_success", "", sent(ann, delete, **PLAIN)),
        ("DeleteBucketOwnershipControls_success", "OwnershipControlsNotFoundError", sent(ann, get, **PLAIN)),
    )


# --- object lock ----------------------------------------------------------------------------------
GOVERNANCE = {"Mode": "GOVERNANCE", "RetainUntilDate": SOON}
COMPLIANCE = {"Mode": "COMPLIANCE", "RetainUntilDate": SOON}
BYPASS = {"BypassGovernanceRetention": True}


@pytest.fixture
def owner(ann: Any) -> Any:
    """A client of the owner of a bucket without lock, and of one with it."""
    ann.create_bucket(**LOCKED, ObjectLockEnabledForBucket=True)
    return ann


def stored(client: Any, key: str, bucket: Mapping[str, str] = LOCKED, **options: Any) -> dict[str, Any]:
    """Store an object, and return what names its version."""
    named = {**bucket, "Key": key}
    version = client.put_object(**named, Body=b"x", **options).get("VersionId")
    return named if version is None else {**named, "VersionId": version}


def test_lock_configurations(owner: Any) -> None:
    """PutObjectLockConfiguration (7 of its 9 cases), GetObjectLockConfiguration (3). Of the others, one expects what
    AWS does not do, as its comment says; and days or years below 1 are answered as by RGW, which is asserted here,
    too."""

    def put(retention: Mapping[str, Any] | None, status: str = "Enabled", **bucket: str) -> Callable[[], object]:
        rule = {} if retention is None else {"Rule": {"DefaultRetention": retention}}
        configuration = {"ObjectLockEnabled": status, **rule}
        return sent(
            owner, "put_object_lock_configuration", **{**PLAIN, **bucket}, ObjectLockConfiguration=configuration
        )

    raw = ("put_object_lock_configuration", "PutObjectLockConfiguration")
    get = "get_object_lock_configuration"
    assert not failed(
        (
            "PutObjectLockConfiguration_non_existing_bucket",
            "NoSuchBucket",
            put({"Mode": "COMPLIANCE", "Days": 10}, **NONE),
        ),
        (
            "PutObjectLockConfiguration_empty_request_body",
            "MissingRequestBodyError",
            sent(owner, "put_object_lock_configuration", **PLAIN),
        ),
        ("PutObjectLockConfiguration_malformed_body", "MalformedXML", with_body(owner, *raw, b"malformed", **PLAIN)),
        ("PutObjectLockConfiguration_invalid_status", "MalformedXML", put({"Days": 12}, "invalid_status")),
        ("PutObjectLockConfiguration_invalid_mode", "MalformedXML", put({"Days": 12, "Mode": "invalid_mode"})),
        ("PutObjectLockConfiguration_both_years_and_days", "MalformedXML", put({"Days": 12, "Years": 24})),
        (
            "PutObjectLockConfiguration_invalid_years_days",
            "InvalidRetentionPeriod",
            put({"Days": -3, "Mode": "COMPLIANCE"}),
        ),
        (
            "PutObjectLockConfiguration_invalid_years_days",
            "InvalidRetentionPeriod",
            put({"Years": -5, "Mode": "COMPLIANCE"}),
        ),
        ("PutObjectLockConfiguration_success", "", put(None, **LOCKED)),
        ("GetObjectLockConfiguration_non_existing_bucket", "NoSuchBucket", sent(owner, get, **NONE)),
        ("GetObjectLockConfiguration_unset_config", "ObjectLockConfigurationNotFoundError", sent(owner, get, **PLAIN)),
        ("GetObjectLockConfiguration_success", "", sent(owner, get, **LOCKED)),
    )


def test_retentions(owner: Any) -> None:
    """PutObjectRetention (12 cases), GetObjectRetention (5)."""

    def put(named: Mapping[str, Any], retention: Mapping[str, Any], **more: Any) -> Callable[[], object]:
        return sent(owner, "put_object_retention", **named, Retention=retention, **more)

    def get(**named: Any) -> Callable[[], object]:
        return sent(owner, "get_object_retention", **named)

    none, plain = {**LOCKED, "Key": "none"}, stored(owner, "k", PLAIN)
    complying, governed, free = (stored(owner, key) for key in ("complying", "governed", "free"))
    assert not failed(
        ("PutObjectRetention_non_existing_bucket", "NoSuchBucket", put({**NONE, "Key": "k"}, {})),
        ("PutObjectRetention_non_existing_object", "NoSuchKey", put(none, COMPLIANCE)),
        ("PutObjectRetention_unset_bucket_object_lock_config", "InvalidRequest", put(plain, COMPLIANCE)),
        (
            "PutObjectRetention_expired_retain_until_date",
            "InvalidArgument",
            put(none, {**COMPLIANCE, "RetainUntilDate": PAST}),
        ),
        ("PutObjectRetention_invalid_mode", "MalformedXML", put(none, {**COMPLIANCE, "Mode": "invalid_mode"})),
        ("PutObjectRetention_success", "", put(complying, COMPLIANCE)),
        ("PutObjectRetention_overwrite_compliance_mode", "AccessDenied", put(complying, GOVERNANCE)),
        (
            "PutObjectRetention_overwrite_compliance_with_compliance",
            "",
            put(complying, {**COMPLIANCE, "RetainUntilDate": LATER}),
        ),
        ("GetObjectRetention_success", "", get(**complying)),
        ("PutObjectRetention_overwrite_governance_with_governance", "", put(governed, GOVERNANCE)),
        (
            "PutObjectRetention_overwrite_governance_with_governance",
            "",
            put(governed, {**GOVERNANCE, "RetainUntilDate": LATER}),
        ),
        ("PutObjectRetention_overwrite_governance_without_bypass_specified", "AccessDenied", put(governed, COMPLIANCE)),
        ("PutObjectRetention_overwrite_governance_with_permission", "", put(governed, COMPLIANCE, **BYPASS)),
        (
            "PutObjectRetention_empty_version_id",
            "InvalidArgument",
            with_empty_version(owner, "put_object_retention", Retention=GOVERNANCE),
        ),
        ("GetObjectRetention_non_existing_bucket", "NoSuchBucket", get(**NONE, Key="k")),
        ("GetObjectRetention_non_existing_object", "NoSuchKey", get(**none)),
        ("GetObjectRetention_disabled_lock", "InvalidRequest", get(**plain)),
        ("GetObjectRetention_unset_config", "NoSuchObjectLockConfiguration", get(**free)),
    )


def with_empty_version(client: Any, method: str, **arguments: Any) -> Callable[[], object]:
    return sent(client, method, **LOCKED, Key="complying", VersionId="", **arguments)


def test_legal_holds(owner: Any) -> None:
    """PutObjectLegalHold (7 cases), GetObjectLegalHold (5)."""

    def put(status: str, **named: Any) -> Callable[[], object]:
        return sent(owner, "put_object_legal_hold", **named, LegalHold={"Status": status})

    def get(**named: Any) -> Callable[[], object]:
        return sent(owner, "get_object_legal_hold", **named)

    none, plain = {**LOCKED, "Key": "none"}, stored(owner, "k", PLAIN)
    held, free = stored(owner, "complying"), stored(owner, "free")
    raw = ("put_object_legal_hold", "PutObjectLegalHold")
    assert not failed(
        ("PutObjectLegalHold_non_existing_bucket", "NoSuchBucket", put("ON", **NONE, Key="k")),
        ("PutObjectLegalHold_non_existing_object", "NoSuchKey", put("ON", **none)),
        ("PutObjectLegalHold_invalid_body", "MalformedXML", with_body(owner, *raw, b"<LegalHold/>", **PLAIN, Key="k")),
        ("PutObjectLegalHold_invalid_status", "MalformedXML", put("invalid_status", **plain)),
        ("PutObjectLegalHold_unset_bucket_object_lock_config", "InvalidRequest", put("ON", **plain)),
        ("PutObjectLegalHold_success", "", put("ON", **held)),
        (
            "PutObjectLegalHold_empty_version_id",
            "InvalidArgument",
            with_empty_version(owner, "put_object_legal_hold", LegalHold={"Status": "ON"}),
        ),
        ("GetObjectLegalHold_success", "", get(**held)),
        ("GetObjectLegalHold_non_existing_bucket", "NoSuchBucket", get(**NONE, Key="k")),
        ("GetObjectLegalHold_non_existing_object", "NoSuchKey", get(**none)),
        ("GetObjectLegalHold_disabled_lock", "InvalidRequest", get(**plain)),
        ("GetObjectLegalHold_unset_config", "NoSuchObjectLockConfiguration", get(**free)),
    )


def test_locks_in_headers(owner: Any) -> None:
    """The cases of PutObject (4), CopyObject (4) and CreateMultipartUpload (6) that concern locks, here for each of the
    three."""
    source = stored(owner, "source")

    def each(name: str, wanted: str, headers: Mapping[str, Any], bucket: Mapping[str, str] = LOCKED) -> list[Case]:
        named = {**bucket, "Key": "k"}
        return [
            (f"PutObject_{name}", wanted, sent(owner, "put_object", **named, **headers)),
            (f"CopyObject_{name}", wanted, sent(owner, "copy_object", **named, CopySource=source, **headers)),
            (f"CreateMultipartUpload_{name}", wanted, sent(owner, "create_multipart_upload", **named, **headers)),
        ]

    retention = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": SOON}
    locks = {**retention, "ObjectLockLegalHoldStatus": "ON"}
    assert not failed(
        *each("missing_object_lock_retention_config", "InvalidArgument", {"ObjectLockMode": "GOVERNANCE"}),
        *each("missing_object_lock_retention_config", "InvalidArgument", {"ObjectLockRetainUntilDate": SOON}),
        *each("invalid_legal_hold", "InvalidArgument", {"ObjectLockLegalHoldStatus": "invalid_status"}),
        *each("invalid_object_lock_mode", "InvalidArgument", {**retention, "ObjectLockMode": "invalid_mode"}),
        *each("past_retain_until_date", "InvalidArgument", {**retention, "ObjectLockRetainUntilDate": PAST}),
        *each("with_object_lock_not_enabled", "InvalidRequest", locks, PLAIN),
        *each("with_object_lock", "", locks),
    )
    versions = owner.list_object_versions(**LOCKED, Prefix="k")["Versions"]
    assert len(versions) == 2
    for version in versions:
        found = owner.head_object(**LOCKED, Key="k", VersionId=version["VersionId"])
        assert {name: found[name] for name in locks} == locks


def test_locked_versions(owner: Any) -> None:
    """The cases of Versioning that concern locks (11)."""
    assert owner.get_bucket_versioning(**LOCKED)["Status"] == "Enabled", "Versioning_Enable_object_lock"
    get, put, delete = "get_object_retention", "put_object_retention", "delete_object"
    get_hold, put_hold = "get_object_legal_hold", "put_object_legal_hold"
    invalid = {**LOCKED, "Key": "free", "VersionId": "invalid_version_id"}
    free, complying, governed, held = (stored(owner, key) for key in ("free", "complying", "governed", "held"))
    suspended = {"VersioningConfiguration": {"Status": "Suspended"}}
    on: Any = {"LegalHold": {"Status": "ON"}}
    assert not failed(
        (
            "Versioning_status_switch_to_suspended_with_object_lock",
            "InvalidBucketState",
            sent(owner, "put_bucket_versioning", **LOCKED, **suspended),
        ),
        (
            "Versioning_PutObjectRetention_invalid_versionId",
            "InvalidArgument",
            sent(owner, put, **invalid, Retention=GOVERNANCE),
        ),
        ("Versioning_GetObjectRetention_invalid_versionId", "InvalidArgument", sent(owner, get, **invalid)),
        ("Versioning_PutObjectLegalHold_invalid_versionId", "InvalidArgument", sent(owner, put_hold, **invalid, **on)),
        ("Versioning_GetObjectLegalHold_invalid_versionId", "InvalidArgument", sent(owner, get_hold, **invalid)),
        ("Versioning_Put_GetObjectRetention_success", "", sent(owner, put, **complying, Retention=COMPLIANCE)),
        ("Versioning_Put_GetObjectRetention_success", "", sent(owner, get, **complying)),
        ("Versioning_Put_GetObjectLegalHold_success", "", sent(owner, put_hold, **held, **on)),
        ("Versioning_Put_GetObjectLegalHold_success", "", sent(owner, get_hold, **held)),
        ("Versioning_WORM_obj_version_locked_with_legal_hold", "AccessDenied", sent(owner, delete, **held)),
        (
            "Versioning_WORM_obj_version_locked_with_governance_retention",
            "",
            sent(owner, put, **governed, Retention=GOVERNANCE),
        ),
        (
            "Versioning_WORM_obj_version_locked_with_governance_retention",
            "AccessDenied",
            sent(owner, delete, **governed),
        ),
        (
            "Versioning_WORM_obj_version_locked_with_compliance_retention",
            "AccessDenied",
            sent(owner, delete, **complying, **BYPASS),
        ),
        ("the version without a lock", "", sent(owner, delete, **free)),
    )
