"""Session tokens, without a store."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.auth.session_tokens import TOKEN_CHARS_MAX, SessionTokens
from nos_ec.s3 import sts
from nos_ec.s3.errors import S3Error
from nos_ec.s3.sts import Credentials, Session

OLD, NEW = "12" * 32, "34" * 32
SESSION = Session("ann", "AKEY", b"12345678", 1_700_000_000, "backup", "nightly", '{"Statement": []}')


def tokens(*keys: str) -> SessionTokens:
    return SessionTokens(MasterKeys(keys or [OLD]), os.urandom)


def refused(call: Callable[[], object], code: str) -> None:
    with pytest.raises(S3Error) as raised:
        call()
    assert raised.value.code == code


@given(st.text(max_size=20), st.text(max_size=2048), st.binary(max_size=8))
def test_a_token_holds_its_session(account: str, policy: str, generation: bytes) -> None:
    issuer = tokens()
    made = issuer.issue(Session(account, "AKEY", generation, 5, policy=policy))
    assert issuer.open(made.access_key, made.token) == made
    assert made.access_key.startswith("ASIA")
    assert len(made.secret) == 40


def test_the_longest_token_is_accepted() -> None:
    """A policy of random text does not compress."""
    policy = base64.b64encode(os.urandom(sts.POLICY_CHARS_MAX)).decode()[: sts.POLICY_CHARS_MAX]
    made = tokens().issue(Session("a" * 64, "k" * 128, bytes(8), 1 << 40, "r" * 128, "s" * 64, policy))
    assert len(made.token) < TOKEN_CHARS_MAX
    assert tokens().open(made.access_key, made.token).session.policy == policy


def test_a_policy_that_does_not_fit_is_refused_at_once() -> None:
    """Random characters of other scripts take three bytes each and cannot be compressed."""
    policy = "".join(chr(0x4E00 + one % 20_000) for one in memoryview(os.urandom(2 * 2048)).cast("H"))
    refused(partial(tokens().issue, Session("ann", "AKEY", bytes(8), 5, policy=policy)), "PackedPolicyTooLarge")
    made = tokens().issue(Session("ann", "AKEY", bytes(8), 5, policy="\U0001f600" * 2048))
    assert tokens().open(made.access_key, made.token).session.policy == "\U0001f600" * 2048


def test_every_changed_character_is_refused() -> None:
    issuer = tokens()
    made = issuer.issue(SESSION)
    for place, char in enumerate(made.token):
        changed = made.token[:place] + ("A" if char != "A" else "B") + made.token[place + 1 :]
        refused(partial(issuer.open, made.access_key, changed), "InvalidToken")
    for token in (
        "",
        "A",
        "!",
        "é",
        made.token[:-4],
        made.token + "=",
        made.token + "AAAA",
        "A" * (TOKEN_CHARS_MAX + 1),
    ):
        refused(partial(issuer.open, made.access_key, token), "InvalidToken")


def test_a_token_belongs_to_its_access_key() -> None:
    issuer = tokens()
    one, other = issuer.issue(SESSION), issuer.issue(SESSION)
    refused(lambda: issuer.open(other.access_key, one.token), "InvalidToken")
    assert len({one.secret, other.secret, one.token, other.token}) == 4


def test_tokens_outlive_a_change_of_the_master_key_until_the_old_one_is_removed() -> None:
    made = tokens(OLD).issue(SESSION)
    assert tokens(NEW, OLD).open(made.access_key, made.token) == made
    refused(lambda: tokens(NEW).open(made.access_key, made.token), "InvalidToken")
    assert tokens(NEW, OLD).issue(SESSION).token[:6] != made.token[:6], "made with the first master key"


def test_secrets_are_not_shown() -> None:
    made = tokens().issue(SESSION)
    assert isinstance(made, Credentials)
    assert made.secret not in repr(made)
    assert made.token not in repr(made)


ROLE = "RoleArn=arn:aws:iam::ann:role/backup&RoleSessionName=nightly"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("Action=GetCallerIdentity&Version=2011-06-15", sts.Wanted("GetCallerIdentity")),
        ("Action=GetSessionToken", sts.Wanted("GetSessionToken", 43200)),
        ("Action=GetSessionToken&DurationSeconds=900", sts.Wanted("GetSessionToken", 900)),
        (f"Action=AssumeRole&{ROLE}", sts.Wanted("AssumeRole", 3600, "ann", "backup", "nightly")),
        (
            f"Action=AssumeRole&{ROLE}&ExternalId=x&DurationSeconds=43200&Policy=%7B%7D",
            sts.Wanted("AssumeRole", 43200, "ann", "backup", "nightly", "{}"),
        ),
    ],
)
def test_requests_are_parsed(body: str, wanted: sts.Wanted) -> None:
    assert sts.wanted_of(body.encode()) == wanted


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "MissingAction"),
        ("Version=2011-06-15", "MissingAction"),
        ("Action=AssumeRoleWithSAML", "InvalidAction"),
        ("Action=GetSessionToken&Version=2010-05-08", "InvalidAction"),
        ("Action=GetSessionToken&Action=GetSessionToken", "ValidationError"),
        ("Action=GetSessionToken&DurationSeconds=899", "ValidationError"),
        ("Action=GetSessionToken&DurationSeconds=129601", "ValidationError"),
        ("Action=GetSessionToken&DurationSeconds=1e3", "ValidationError"),
        ("Action=GetSessionToken&TokenCode=123456", "ValidationError"),
        (f"Action=AssumeRole&{ROLE}&DurationSeconds=43201", "ValidationError"),
        (f"Action=AssumeRole&{ROLE}&SerialNumber=x", "ValidationError"),
        (f"Action=AssumeRole&{ROLE}&Policy={'x' * 2049}", "ValidationError"),
        (f"Action=AssumeRole&{ROLE}&Policy=", "ValidationError"),
        ("Action=AssumeRole&RoleSessionName=nightly", "ValidationError"),
        ("Action=AssumeRole&RoleArn=arn:aws:iam::ann:user/ann&RoleSessionName=nightly", "ValidationError"),
        ("Action=AssumeRole&RoleArn=arn:aws:iam::ann:role/b&RoleSessionName=a/b", "ValidationError"),
        ("Action=%FF", "ValidationError"),
        ("&".join(f"a{number}=1" for number in range(51)), "ValidationError"),
    ],
)
def test_bad_requests_are_refused(body: str, code: str) -> None:
    refused(lambda: sts.wanted_of(body.encode()), code)
