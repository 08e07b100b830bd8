"""Temporary credentials: AssumeRole and GetSessionToken, what a session may do, and when it ends."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from nos_ec.composition.wiring import System
from nos_ec.core.errors import InvalidInput
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.auth.session_tokens import SessionTokens
from nos_ec.gateway.server import http_server
from nos_ec.ports.metadata import KeyState
from nos_ec.s3 import sts
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused, serving

NAMED = {"Bucket": "photos", "Key": "k"}
ROLE = {"RoleArn": "arn:aws:iam::ann:role/backup", "RoleSessionName": "nightly"}


class Holder:
    """The holder of an access key of an account."""

    def __init__(self, gateway: Gateway, account: str = "ann") -> None:
        self.gateway = gateway
        made = gateway.accounts.create_key(MASTERS, account)
        self.access_key, self.secret = made.key.access_key, made.secret
        self.sts = gateway.client_of(self.access_key, self.secret, service="sts")

    def assume(self, policy: Any = None, **options: Any) -> dict[str, str]:
        more = {} if policy is None else {"Policy": json.dumps(policy)}
        found: dict[str, str] = self.sts.assume_role(**{**ROLE, **more, **options})["Credentials"]
        return found

    def session(self, policy: Any = None) -> Any:
        return self.client(self.assume(policy))

    def client(self, given: dict[str, str], service: str = "s3") -> Any:
        keys = given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]
        return self.gateway.client_of(*keys, service=service)


def allow(*actions: str, resource: Any = "*") -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": resource}]}


@pytest.fixture
def holder(gateway: Gateway, ann: Any) -> Holder:
    ann.put_object(**NAMED, Body=b"x")
    return Holder(gateway)


def test_a_session_without_a_policy_may_do_what_its_account_may(holder: Holder) -> None:
    answer = holder.sts.assume_role(**ROLE)
    assert answer["AssumedRoleUser"]["Arn"] == "arn:aws:sts::ann:assumed-role/backup/nightly"
    client = holder.client(answer["Credentials"])
    assert client.get_object(**NAMED)["Body"].read() == b"x"
    client.put_object(**NAMED, Body=b"y")
    client.create_bucket(Bucket="another")
    assert {one["Name"] for one in client.list_buckets()["Buckets"]} == {"another", "photos"}
    token = holder.sts.get_session_token(DurationSeconds=900)["Credentials"]
    assert holder.client(token).get_object(**NAMED)["Body"].read() == b"y"


def test_an_account_has_only_roles_of_its_own(holder: Holder) -> None:
    error = refused("AccessDenied", 403, Holder(holder.gateway, "bob").assume)
    assert "must name the account of the access key, bob" in str(error)
    refused("AccessDenied", 403, Holder(holder.gateway, "root").assume)


def test_a_session_may_do_no_more_than_its_policy_allows(holder: Holder, ann: Any) -> None:
    ann.put_object(Bucket="photos", Key="in/k", Body=b"in")
    photos = "arn:aws:s3:::photos"
    client = holder.session(allow("s3:GetObject", "s3:DeleteObject", resource=f"{photos}/in/*"))
    assert client.get_object(Bucket="photos", Key="in/k")["Body"].read() == b"in"
    denied = [
        (client.get_object, NAMED),
        (client.head_bucket, {"Bucket": "photos"}),
        (client.list_objects_v2, {"Bucket": "photos"}),
        (client.list_buckets, {}),
        (client.create_bucket, {"Bucket": "another"}),
        (client.put_object, {"Bucket": "photos", "Key": "in/k"}),
        (client.get_object, {"Bucket": "photos", "Key": "in/none"}),
        (client.get_bucket_policy, {"Bucket": "photos"}),
        (client.put_bucket_policy, {"Bucket": "photos", "Policy": "{}"}),
        (client.delete_bucket_policy, {"Bucket": "photos"}),
        (client.delete_bucket, {"Bucket": "photos"}),
        (client.get_object, {"Bucket": "photos", "Key": "in/k", "VersionId": "null"}),
    ]
    for call, arguments in denied:
        with pytest.raises(ClientError) as caught:
            call(**arguments)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, (call, arguments)
    keys = {"Objects": [{"Key": "k"}, {"Key": "in/k"}]}
    answer = client.delete_objects(Bucket="photos", Delete=keys)
    assert [one["Key"] for one in answer["Deleted"]] == ["in/k"]
    assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [("k", "AccessDenied")]


def test_a_session_of_root_is_restricted_too(holder: Holder) -> None:
    root = Holder(holder.gateway, "root")
    role = {"RoleArn": "arn:aws:iam::root:role/backup"}
    given = root.assume(allow("s3:GetObject"), **role)
    assert root.client(given).get_object(**NAMED)["Body"].read() == b"x"
    refused("AccessDenied", 403, root.client(given).put_object, **NAMED)
    refused("AccessDenied", 403, root.client(given).delete_bucket_policy, Bucket="photos")


def test_a_copy_needs_the_source_and_what_its_headers_set(holder: Holder) -> None:
    source = {"CopySource": "photos/k"}
    target = {"Bucket": "photos", "Key": "copy"}
    only_put = holder.session(allow("s3:PutObject"))
    refused("AccessDenied", 403, only_put.copy_object, **target, **source)
    refused("AccessDenied", 403, only_put.put_object, **target, ACL="public-read")
    refused("AccessDenied", 403, only_put.put_object, **target, Tagging="a=b")
    upload = only_put.create_multipart_upload(**target)["UploadId"]
    refused("AccessDenied", 403, only_put.upload_part_copy, **target, **source, UploadId=upload, PartNumber=1)
    holder.session(allow("s3:PutObject", "s3:GetObject", "s3:GetObjectTagging")).copy_object(**target, **source)
    maker = holder.session(allow("s3:CreateBucket"))
    refused("AccessDenied", 403, maker.create_bucket, Bucket="another", ACL="public-read")
    maker.create_bucket(Bucket="another")


def test_a_session_with_a_deny(holder: Holder) -> None:
    policy = allow("s3:*")
    policy["Statement"].append({"Effect": "Deny", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::photos/*"})
    client = holder.session(policy)
    client.get_object(**NAMED)
    client.list_buckets()
    refused("AccessDenied", 403, client.put_object, **NAMED)


@pytest.mark.parametrize(
    "policy",
    [
        {"Version": "2012-10-17", "Statement": []},
        {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*"}]},
        allow("s3:GetObjekt"),
        allow("s3:*", resource="photos"),
    ],
)
def test_a_policy_that_is_not_valid_makes_no_session(holder: Holder, policy: Any) -> None:
    refused("MalformedPolicyDocument", 400, holder.assume, policy=policy)


def test_a_session_cannot_extend_itself(holder: Holder) -> None:
    inside = holder.client(holder.assume(), "sts")
    refused("AccessDenied", 403, inside.assume_role, **ROLE)
    refused("AccessDenied", 403, inside.get_session_token)
    identity = inside.get_caller_identity()
    assert (identity["Account"], identity["Arn"]) == ("ann", "arn:aws:sts::ann:assumed-role/backup/nightly")
    identity = holder.sts.get_caller_identity()
    assert (identity["Arn"], identity["UserId"]) == ("arn:aws:iam::ann:user/ann", holder.access_key)


def test_a_session_ends_with_its_time(holder: Holder) -> None:
    now_s = holder.gateway.system.clock.now_ms() // 1000
    for expires_s, is_over in ((now_s + 60, False), (now_s - 1, True)):
        client, _ = issued(holder, expires_s)
        if is_over:
            refused("ExpiredToken", 400, client.get_object, **NAMED)
        else:
            client.get_object(**NAMED)


def issued(holder: Holder, expires_s: int) -> tuple[Any, sts.Credentials]:
    """Return a client with credentials that end at this time, which no request could ask for."""
    key = holder.gateway.system.metadata.access_key(holder.access_key)
    assert key is not None
    session = sts.Session("ann", holder.access_key, key.generation, expires_s)
    made = SessionTokens(MASTERS, os.urandom).issue(session)
    return holder.gateway.client_of(made.access_key, made.secret, made.token), made


@pytest.fixture
def at_once(system: System, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holder]:
    """A holder whose gateway remembers nothing."""
    monkeypatch.setattr(http_server, "ACCESS_CACHE_MS", 0)
    with serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        ann.put_object(**NAMED, Body=b"x")
        yield Holder(gateway)


def test_a_session_ends_with_its_access_key(at_once: Holder) -> None:
    accounts = at_once.gateway.accounts
    ends: list[Callable[[], object]] = [
        lambda: accounts.set_key_state(at_once.access_key, KeyState.DISABLED),
        lambda: accounts.rotate_key(MASTERS, at_once.access_key),
        lambda: accounts.end_sessions("ann"),
        lambda: accounts.remove_key(at_once.access_key),
    ]
    for end in ends:
        client = at_once.session()
        client.get_object(**NAMED)
        end()
        refused("InvalidToken", 400, client.get_object, **NAMED)
        if end is ends[0]:
            accounts.set_key_state(at_once.access_key, KeyState.ACTIVE)
            client.get_object(**NAMED)
        elif end is ends[1]:
            secret = accounts.rotate_key(MASTERS, at_once.access_key).secret
            at_once.sts = at_once.gateway.client_of(at_once.access_key, secret, service="sts")


def test_sessions_of_other_accounts_go_on(at_once: Holder) -> None:
    bob = Holder(at_once.gateway, "bob")
    client = bob.client(bob.assume(RoleArn="arn:aws:iam::bob:role/backup"))
    assert at_once.gateway.accounts.end_sessions("ann") == 2
    client.list_buckets()
    with pytest.raises(InvalidInput):
        at_once.gateway.accounts.end_sessions("not valid")


def test_a_restored_access_key_has_no_sessions(at_once: Holder) -> None:
    """A dump may be older than the end of a session."""
    client, metadata = at_once.session(), at_once.gateway.system.metadata
    key = metadata.access_key(at_once.access_key)
    assert key is not None
    metadata.remove_access_key(at_once.access_key)
    metadata.add_access_key(key)
    refused("InvalidToken", 400, client.get_object, **NAMED)
    at_once.session().get_object(**NAMED)


def test_a_reencrypted_secret_ends_no_session(at_once: Holder) -> None:
    client = at_once.session()
    newer = MasterKeys(["34" * 32, "12" * 32])
    assert at_once.gateway.accounts.encrypt_again(newer) == 2
    assert at_once.gateway.accounts.encrypt_again(MasterKeys(["12" * 32, "34" * 32])) == 2
    client.get_object(**NAMED)


def test_credentials_must_be_used_together(holder: Holder) -> None:
    one, other = holder.assume(), holder.assume()
    key, secret, token = one["AccessKeyId"], one["SecretAccessKey"], one["SessionToken"]
    client_of = holder.gateway.client_of
    refused("InvalidAccessKeyId", 403, client_of(key, secret).get_object, **NAMED)
    refused("SignatureDoesNotMatch", 403, client_of(key, holder.secret, token).get_object, **NAMED)
    refused("InvalidToken", 400, client_of(key, secret, other["SessionToken"]).get_object, **NAMED)
    refused("InvalidToken", 400, client_of(holder.access_key, holder.secret, token).get_object, **NAMED)
    refused("InvalidClientTokenId", 403, client_of("NOKEY", secret, service="sts").get_caller_identity)
    refused("SignatureDoesNotMatch", 403, client_of(holder.access_key, "x" * 40, service="sts").get_caller_identity)


def test_a_presigned_url_ends_with_its_session(holder: Holder) -> None:
    given = holder.assume(allow("s3:GetObject"))
    now_s = holder.gateway.system.clock.now_ms() // 1000
    gateway = holder.gateway
    live = holder.client(given).generate_presigned_url("get_object", NAMED, 3600).removeprefix(gateway.url)
    assert gateway.raw("GET", live)[:2] == (200, b"x")
    put = holder.client(given).generate_presigned_url("put_object", NAMED, 3600).removeprefix(gateway.url)
    assert gateway.raw("PUT", put, b"y")[0] == 403
    over, _ = issued(holder, now_s - 1)
    status, body, _ = gateway.raw(
        "GET", over.generate_presigned_url("get_object", NAMED, 3600).removeprefix(gateway.url)
    )
    assert (status, b"ExpiredToken" in body) == (400, True)
    without = "&".join(part for part in live.split("&") if not part.startswith("X-Amz-Security-Token"))
    assert gateway.raw("GET", without)[0] == 403


def test_a_form_may_be_signed_in_a_session(holder: Holder) -> None:
    gateway = holder.gateway
    for policy, status in ((allow("s3:PutObject"), 204), (allow("s3:GetObject"), 403)):
        form = holder.session(policy).generate_presigned_post("photos", "form")
        assert "x-amz-security-token" in form["fields"]
        parts = [*form["fields"].items(), ("file", "data")]
        text = "".join(
            f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts
        )
        body = (text + "--x--\r\n").encode()
        assert gateway.raw("POST", "/photos", body, Content_Type="multipart/form-data; boundary=x")[0] == status


def test_requests_without_a_signature_or_with_another_body_are_refused(holder: Holder) -> None:
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    status, body, _ = holder.gateway.raw("POST", "/", b"Action=GetCallerIdentity", **kind)
    assert (status, b"MissingAuthenticationToken" in body, b"<ErrorResponse" in body) == (403, True, True)
    status, body, _ = holder.gateway.raw("POST", "/", b"x" * 20_000, **kind)
    assert (status, b"ValidationError" in body) == (400, True)
    request = AWSRequest("POST", holder.gateway.url + "/", data=b"Action=GetCallerIdentity")
    request.headers["Content-Type"] = "application/x-www-form-urlencoded"
    SigV4Auth(Credentials(holder.access_key, holder.secret), "sts", "eu-north-1").add_auth(request)
    headers = {name.replace("-", "_"): value for name, value in request.headers.items()}
    assert holder.gateway.raw("POST", "/", b"Action=GetCallerIdentity", **headers)[0] == 200
    status, body, _ = holder.gateway.raw("POST", "/", b"Action=GetSessionToken", **headers)
    assert (status, b"SignatureDoesNotMatch" in body) == (403, True)


def test_a_key_of_one_service_does_not_sign_for_the_other(holder: Holder) -> None:
    request = AWSRequest("GET", f"{holder.gateway.url}/photos/k")
    request.headers["x-amz-content-sha256"] = "UNSIGNED-PAYLOAD"
    SigV4Auth(Credentials(holder.access_key, holder.secret), "sts", "eu-north-1").add_auth(request)
    headers = {name.replace("-", "_"): value for name, value in request.headers.items()}
    status, body, _ = holder.gateway.raw("GET", "/photos/k", **headers)
    assert (status, b"expecting s3/aws4_request" in body) == (400, True)


def with_condition(condition: dict[str, Any], *actions: str) -> dict[str, Any]:
    """A session policy that allows these actions on this condition, and lists everything."""
    policy = allow(*actions)
    policy["Statement"][0]["Condition"] = condition
    policy["Statement"].append(allow("s3:ListBucket")["Statement"][0])
    return policy


def test_conditions_of_session_policies(holder: Holder, ann: Any) -> None:
    here = {"IpAddress": {"aws:SourceIp": "127.0.0.1"}}
    session = holder.session(with_condition(here, "s3:GetObject", "s3:ListAllMyBuckets"))
    session.get_object(**NAMED)
    session.list_buckets()
    elsewhere = holder.session(with_condition({"IpAddress": {"aws:SourceIp": "192.0.2.1"}}, "s3:*"))
    for call, arguments in ((elsewhere.get_object, NAMED), (elsewhere.list_buckets, {})):
        refused("AccessDenied", 403, call, **arguments)
    ann.put_object(Bucket="photos", Key="public", Body=b"x", Tagging="security=public")
    tagged = with_condition(
        {"StringEquals": {"s3:ExistingObjectTag/security": "public"}}, "s3:GetObject", "s3:PutObjectTagging"
    )
    session = holder.session(tagged)
    session.get_object(Bucket="photos", Key="public")
    refused("AccessDenied", 403, session.get_object, **NAMED)
    refused("AccessDenied", 403, session.get_object, Bucket="photos", Key="missing")
    tags = {"TagSet": [{"Key": "security", "Value": "private"}]}
    refused("AccessDenied", 403, session.put_object_tagging, **NAMED, Tagging=tags)
    session.put_object_tagging(Bucket="photos", Key="public", Tagging=tags)
    refused("AccessDenied", 403, session.put_object_tagging, Bucket="photos", Key="public", Tagging=tags)
    # The policies of session and bucket must both agree, whichever of them needs the tags.
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::photos/*"}
    bucket_policy = {"Statement": [{**deny, "Condition": {"Null": {"s3:ExistingObjectTag/security": "true"}}}]}
    ann.put_bucket_policy(Bucket="photos", Policy=json.dumps(bucket_policy))
    plain = holder.session(allow("s3:GetObject"))
    plain.get_object(Bucket="photos", Key="public")
    refused("AccessDenied", 403, plain.get_object, **NAMED)


def test_a_session_policy_with_a_condition_that_cannot_hold_is_refused(holder: Holder) -> None:
    for condition in ({"StringEquals": {"aws:Unknown": "a"}}, {"StringEquals": {"s3:prefix": "a"}}):
        with pytest.raises(ClientError, match="MalformedPolicy"):
            holder.assume(with_condition(condition, "s3:GetObject"))


def test_tags_of_a_new_bucket_in_a_session(holder: Holder) -> None:
    tagged = {"Bucket": "music", "CreateBucketConfiguration": {"Tags": [{"Key": "a", "Value": "b"}]}}
    refused("AccessDenied", 403, holder.session(allow("s3:CreateBucket")).create_bucket, **tagged)
    holder.session(allow("s3:CreateBucket", "s3:PutBucketTagging")).create_bucket(**tagged)


def test_a_presigned_url_makes_no_credentials(holder: Holder) -> None:
    """It does not cover the body, in which the holder of the URL could ask for more."""
    url = holder.sts.generate_presigned_url("get_caller_identity", HttpMethod="POST").removeprefix(holder.gateway.url)
    kind = {"Content_Type": "application/x-www-form-urlencoded", "x_amz_content_sha256": hashlib.sha256().hexdigest()}
    status, body, _ = holder.gateway.raw("POST", url, b"Action=GetSessionToken", **kind)
    assert (status, b"AccessDenied" in body, b"Credentials" in body) == (403, True, False)


def test_answers_with_secrets_are_not_cached(holder: Holder) -> None:
    answer = holder.sts.get_session_token()
    assert answer["ResponseMetadata"]["HTTPHeaders"]["cache-control"] == "no-store"


def conditioned(action: str, **condition: Any) -> dict[str, Any]:
    policy = allow(action)
    policy["Statement"][0]["Condition"] = {"StringEquals": condition}
    return policy


def test_a_form_does_not_meet_conditions_by_fields_without_an_effect(holder: Holder) -> None:
    gateway, field = holder.gateway, "x-amz-copy-source"
    client = holder.session(conditioned("s3:PutObject", **{f"s3:{field}": "photos/k"}))
    refused("AccessDenied", 403, client.put_object, Bucket="photos", Key="form")
    form = client.generate_presigned_post(
        "photos", "form", Fields={field: "photos/k"}, Conditions=[{field: "photos/k"}]
    )
    parts = [*form["fields"].items(), ("file", "data")]
    text = "".join(f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts)
    body = (text + "--x--\r\n").encode()
    assert gateway.raw("POST", "/photos", body, Content_Type="multipart/form-data; boundary=x")[0] == 403


def test_a_session_does_not_finish_an_upload_that_it_could_not_begin(holder: Holder, ann: Any) -> None:
    client = holder.session(conditioned("s3:PutObject", **{"s3:RequestObjectTag/security": "public"}))
    named = {"Bucket": "photos", "Key": "up"}
    upload = ann.create_multipart_upload(**named, Tagging="security=secret")["UploadId"]
    refused("AccessDenied", 403, client.upload_part, **named, UploadId=upload, PartNumber=1, Body=b"x")
    part = ann.upload_part(**named, UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    refused("AccessDenied", 403, client.complete_multipart_upload, **named, UploadId=upload, MultipartUpload=parts)


def test_a_deny_by_owner_hides_which_keys_exist(holder: Holder) -> None:
    policy = allow("s3:*")
    deny = {"StringEquals": {"s3:ResourceAccount": "ann"}}
    policy["Statement"].append({"Effect": "Deny", "Action": "s3:ListBucket", "Resource": "*", "Condition": deny})
    refused("AccessDenied", 403, holder.session(policy).get_object, Bucket="photos", Key="none")


def test_a_presigned_put_is_unsigned_payload_for_a_policy(holder: Holder) -> None:
    policy = allow("s3:PutObject")
    unsigned = {"StringEquals": {"s3:x-amz-content-sha256": "UNSIGNED-PAYLOAD"}}
    policy["Statement"].append({"Effect": "Deny", "Action": "s3:PutObject", "Resource": "*", "Condition": unsigned})
    client = holder.session(policy)
    client.put_object(**NAMED, Body=b"y")
    url = client.generate_presigned_url("put_object", NAMED, 60).removeprefix(holder.gateway.url)
    assert holder.gateway.raw("PUT", url, b"z")[0] == 403


def test_ending_sessions_and_encrypting_again_undo_no_change_meanwhile(at_once: Holder) -> None:
    """Another administrator disables a key, or gives it a new secret, after the keys were listed."""
    accounts, metadata = at_once.gateway.accounts, at_once.gateway.system.metadata
    listed = metadata.access_keys

    def meanwhile(change: Callable[[], object]) -> Any:
        def access_keys(after: str, limit: int) -> Any:
            page = listed(after, limit)
            if not after:
                change()
            return page

        return access_keys

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            metadata, "access_keys", meanwhile(lambda: accounts.set_key_state(at_once.access_key, KeyState.DISABLED))
        )
        accounts.end_sessions("ann")
    key = metadata.access_key(at_once.access_key)
    assert key is not None
    assert key.state is KeyState.DISABLED
    newer = MasterKeys(["34" * 32, "12" * 32])
    secrets: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        rotate = lambda: secrets.append(accounts.rotate_key(newer, at_once.access_key).secret)  # noqa: E731
        patch.setattr(metadata, "access_keys", meanwhile(rotate))
        accounts.encrypt_again(newer)
    key = metadata.access_key(at_once.access_key)
    assert key is not None
    assert newer.open(at_once.access_key, key.secret) == secrets[0]
