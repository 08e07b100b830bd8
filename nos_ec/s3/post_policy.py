"""Reads and checks the policy of a POST form, which says what a browser may upload, and is signed with an access key.

Sources: "POST object", "POST policy" and "Browser-Based Uploads" of the S3 API reference
(sigv4-HTTPPOSTConstructPolicy, sigv4-post-example); "Browser-based uploads using POST" of the S3 user guide for
Signature Version 2.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from binascii import Error as BadBase64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.signing import sign, signing_key

POLICY_SIZE_MAX = 20 << 10
CONDITIONS_MAX = 200
_FIELDS_WITHOUT_CONDITION = frozenset(["awsaccesskeyid", "signature", "x-amz-signature", "policy", "file"])
"""All other fields must be named in a condition of the policy."""
_PREFIXES_WITHOUT_CONDITION = ("x-ignore-", "x-amz-checksum-")
"""Fields with these prefixes need no condition either. S3 says so of the first one. The second one is allowed as in
radosgw, because a checksum can only make an upload fail."""
_EXPIRATION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z")
_CREDENTIAL = re.compile(r"(.+)/([0-9]{8})/([0-9A-Za-z_-]{1,64})/s3/aws4_request")


@dataclass(frozen=True, slots=True)
class FormClaim:
    """The signature of a form, not verified yet. `policy` is in base64, as signed. `day` (YYYYMMDD) and `region` are
    None for Signature Version 2. `token` is the session token of temporary credentials, None for an access key."""

    access_key: str
    signature: str
    policy: str
    day: str | None = None
    region: str | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The sizes that the file may have, in bytes."""

    bytes_min: int
    bytes_max: int


def read_form_claim(fields: Mapping[str, str]) -> FormClaim | None:
    """Return the signature of a form, or None for an anonymous form, which has no policy either. fields: the values of
    the form's fields, by name in lower case. Raises InvalidArgument, InvalidToken."""
    policy = fields.get("policy")
    signed = not fields.keys().isdisjoint(("awsaccesskeyid", "signature", "x-amz-signature", "x-amz-credential"))
    if policy is None:
        if signed:
            raise _missing("policy")
        return None
    token = fields.get("x-amz-security-token")
    if "x-amz-signature" not in fields and "x-amz-credential" not in fields:  # Signature Version 2
        if token is not None:
            raise S3Error("InvalidToken", "Temporary credentials need Signature Version 4.")
        for name in ("AWSAccessKeyId", "signature"):
            if not fields.get(name.lower()):
                raise _missing(name)
        return FormClaim(fields["awsaccesskeyid"], fields["signature"], policy)
    for name in ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"):
        if not fields.get(name):
            raise _missing(name)
    match = _CREDENTIAL.fullmatch(fields["x-amz-credential"])
    if fields["x-amz-algorithm"] != "AWS4-HMAC-SHA256" or match is None or fields["x-amz-date"][:8] != match[2]:
        raise invalid_argument(
            "The form must be signed with AWS4-HMAC-SHA256 and <access key>/<YYYYMMDD>/<region>/s3/aws4_request, of the"
            " day of x-amz-date.",
            "x-amz-credential",
        )
    return FormClaim(match[1], fields["x-amz-signature"], policy, match[2], match[3], token)


def verify_form(claim: FormClaim, secret: str) -> None:
    """Verify the signature of a form. secret: the secret key of `claim.access_key`. Raises SignatureDoesNotMatch."""
    if claim.day is not None and claim.region is not None:
        computed = sign(signing_key(secret, claim.day, claim.region), claim.policy)
    else:  # Signature Version 2
        computed = base64.b64encode(hmac.digest(secret.encode(), claim.policy.encode(), "sha1")).decode()
    if not hmac.compare_digest(computed.encode(), claim.signature.encode()):
        raise S3Error(
            "SignatureDoesNotMatch",
            "The signature is not the one that this store computed. Check the secret key and how the policy is signed.",
            AWSAccessKeyId=claim.access_key,
            StringToSign=claim.policy,
            SignatureProvided=claim.signature,
        )


def check_policy(policy: str, fields: Mapping[str, str], bucket: str, now_ms: int) -> SizeRange | None:
    """Check the fields of a form against its policy. Return the sizes that the file may have, or None if the policy
    does not limit them.

    policy: in base64. fields: by name in lower case; the value of `key` is the object's name, with ${filename} already
    replaced. Raises InvalidPolicyDocument, or AccessDenied if the policy has expired, or a field does not meet its
    condition or has none."""
    document = _parsed(policy)
    if now_ms > _expiration_ms(document):
        raise _denied("Policy expired.")
    found = {**fields, "bucket": bucket}
    covered: set[str] = set()
    sizes = None
    for condition in document["conditions"]:
        kind, first, second = _condition(condition)
        if kind == "content-length-range":
            sizes = SizeRange(_number(first), _number(second))
            continue
        name = str(first)[1:].lower()  # without the "$"
        covered.add(name)
        value, wanted = found.get(name, ""), str(second)
        # Each value of a Content-Type with commas must have the prefix ("POST policy" of the API reference).
        values = [part.strip() for part in value.split(",")] if name == "content-type" else [value]
        if not (value == wanted if kind == "eq" else all(one.startswith(wanted) for one in values)):
            raise _denied(f"Policy Condition failed: {json.dumps(condition)}")
    for name in found:
        needs_condition = name not in _FIELDS_WITHOUT_CONDITION and not name.startswith(_PREFIXES_WITHOUT_CONDITION)
        if needs_condition and name not in covered:
            raise _denied(f"Extra input fields: {name}")
    return sizes


def _parsed(policy: str) -> dict[str, Any]:
    if len(policy) > POLICY_SIZE_MAX:
        raise _invalid(f"it has more than {POLICY_SIZE_MAX} bytes")
    try:
        document = json.loads(base64.b64decode(policy, validate=True))
    except (BadBase64, ValueError, RecursionError):
        raise _invalid("it must be JSON in base64") from None
    if not isinstance(document, dict) or not document.keys() <= {"expiration", "conditions"}:
        raise _invalid("it must have an expiration and conditions, and nothing else")
    if not isinstance(document.get("expiration"), str):
        raise _invalid("it must have an expiration")
    conditions = document.get("conditions")
    if not isinstance(conditions, list) or not 1 <= len(conditions) <= CONDITIONS_MAX:
        raise _invalid(f"it must have 1 to {CONDITIONS_MAX} conditions")
    return document


def _expiration_ms(document: dict[str, Any]) -> int:
    """Return the expiration in Unix milliseconds. Raises S3Error for every form of ISO 8601 that S3 does not accept."""
    text = document["expiration"]
    try:
        time = datetime.fromisoformat(text) if _EXPIRATION.fullmatch(text) else None
    except ValueError:
        time = None
    if time is None:
        raise _invalid("its expiration must be a time such as 2030-01-01T12:00:00.000Z")
    return int(time.timestamp() * 1000)


def _condition(condition: object) -> tuple[str, object, object]:
    """Return a condition in its form of three items: ("eq" or "starts-with", "$" + field, value), or
    ("content-length-range", minimum, maximum). Whether minimum and maximum are numbers is not checked."""
    if isinstance(condition, dict) and len(condition) == 1:
        ((name, value),) = condition.items()
        if isinstance(value, str):
            return "eq", "$" + name, value
    if isinstance(condition, list) and len(condition) == 3 and isinstance(condition[0], str):
        kind, first, second = condition[0].lower(), condition[1], condition[2]
        if kind == "content-length-range":
            return kind, first, second
        if kind in ("eq", "starts-with") and isinstance(first, str) and first[:1] == "$" and isinstance(second, str):
            return kind, first, second
    raise _invalid(f"the condition {json.dumps(condition)} does not have a form that S3 supports")


def _number(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,15}", text):
        raise _invalid("a content-length-range must have two whole numbers")
    return int(text)


def _missing(name: str) -> S3Error:
    return invalid_argument(f"Bucket POST must contain a field named '{name}'.", name, "")


def _invalid(reason: str) -> S3Error:
    return S3Error("InvalidPolicyDocument", f"Invalid Policy: {reason}.")


def _denied(reason: str) -> S3Error:
    return S3Error("AccessDenied", f"Invalid according to Policy: {reason}")
