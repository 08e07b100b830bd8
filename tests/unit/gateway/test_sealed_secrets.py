"""Secrets of access keys, encrypted under a master key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from nos_ec.core.errors import ConfigError, Corrupt
from nos_ec.gateway.auth.master_keys import find_master_keys
from nos_ec.gateway.auth.sealed_secrets import NONCE_BYTES, MasterKeys
from nos_ec.ports.metadata.buckets import SECRET_BYTES_MAX
from nos_ec.settings import S3Settings

OLD, NEW = "00" * 32, "Ab" * 32
NONCE = bytes(range(NONCE_BYTES))
GOLDEN = "0110726565000102030405060708090a0bff81523e72a5da8dac3e17a8b4a0785002d1639d99ae6103725a597a44"


@given(access_key=st.text(max_size=128), secret=st.text(max_size=128))
def test_a_secret_is_opened_as_it_was(access_key: str, secret: str) -> None:
    keys = MasterKeys([OLD])
    sealed = keys.seal(access_key, secret, NONCE)
    assert keys.open(access_key, sealed) == secret
    assert keys.seal(access_key, secret, bytes(NONCE_BYTES)) != sealed


def test_what_is_stored_fits_its_column_and_does_not_show_the_secret() -> None:
    sealed = MasterKeys([OLD]).seal("AK", "s" * 128, NONCE)
    assert len(sealed) <= SECRET_BYTES_MAX
    assert b"sss" not in sealed


def test_a_secret_that_was_changed_is_refused() -> None:
    keys = MasterKeys([OLD])
    sealed = keys.seal("AK", "a secret", NONCE)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises((Corrupt, ConfigError)):
            keys.open("AK", changed)
    for length in range(len(sealed)):
        with pytest.raises((Corrupt, ConfigError)):
            keys.open("AK", sealed[:length])
    with pytest.raises(Corrupt, match="another key"):
        keys.open("AK2", sealed)


def test_older_master_keys_decrypt_and_the_present_one_encrypts() -> None:
    sealed = MasterKeys([OLD]).seal("AK", "a secret", NONCE)
    both = MasterKeys([NEW, OLD])
    assert both.open("AK", sealed) == "a secret"
    assert not both.is_present(sealed)
    again = both.seal("AK", "a secret", NONCE)
    assert both.is_present(again)
    assert MasterKeys([NEW.upper()]).open("AK", again) == "a secret"
    with pytest.raises(ConfigError, match="another master key"):
        MasterKeys([NEW]).open("AK", sealed)


def test_the_format_of_what_is_stored_does_not_change() -> None:
    stored = bytes.fromhex(GOLDEN)
    assert MasterKeys([OLD]).open("AKIDEXAMPLE", stored) == "wJalrXUtnFEMI"
    assert MasterKeys([OLD]).seal("AKIDEXAMPLE", "wJalrXUtnFEMI", NONCE) == stored


@pytest.mark.parametrize("wrong", ["", "00" * 31, "0g" * 32, "00" * 33, "key with spaces"])
def test_what_is_no_master_key_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="openssl rand -hex 32"):
        MasterKeys([wrong])
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        MasterKeys([])


def test_master_keys_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "master"
    file.write_text(f"{NEW}\n{OLD}\n")
    file.chmod(0o600)
    sealed = find_master_keys(S3Settings(master_key=SecretStr(OLD))).seal("AK", "a secret", NONCE)
    assert find_master_keys(S3Settings(master_key_file=file)).open("AK", sealed) == "a secret"
    refused = {
        "need a master key": S3Settings(),
        "both set": S3Settings(master_key=SecretStr(OLD), master_key_file=file),
        "cannot be read": S3Settings(master_key_file=tmp_path / "none"),
    }
    for says, wrong in refused.items():
        with pytest.raises(ConfigError, match=says):
            find_master_keys(wrong)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="read by every user"):
        find_master_keys(S3Settings(master_key_file=file))
