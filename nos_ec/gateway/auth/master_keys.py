"""Finds the master keys in the settings."""

from __future__ import annotations

from nos_ec.core.errors import ConfigError
from nos_ec.gateway.auth.sealed_secrets import MAKE_ONE, MasterKeys
from nos_ec.settings import S3Settings, read_secret

_FILE = "s3.master_key_file"
_BOTH = ("s3.master_key", _FILE)


def find_master_keys(settings: S3Settings) -> MasterKeys:
    """Return the configured master keys. Raises ConfigError if none is set, or if one is invalid."""
    if settings.master_key is not None and settings.master_key_file is not None:
        raise ConfigError("s3.master_key and s3.master_key_file are both set; remove one of them", settings=_BOTH)
    if settings.master_key is not None:
        return MasterKeys([settings.master_key.get_secret_value()], ("s3.master_key",))
    if settings.master_key_file is not None:
        return MasterKeys(read_secret(settings.master_key_file, _FILE, MAKE_ONE).split(), (_FILE,))
    raise ConfigError(
        "access keys need a master key, which encrypts their secrets: write one to a file that only its owner can read,"
        f" and set s3.master_key_file, or set NOS_EC_S3__MASTER_KEY in the environment ({MAKE_ONE})",
        settings=_BOTH,
    )
