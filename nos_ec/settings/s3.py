"""The section of the S3 gateway."""

from __future__ import annotations

from pydantic import Field, SecretStr

from nos_ec.settings.section import Section
from nos_ec.settings.values import NonEmptyPath


class S3Settings(Section):
    """Access keys of the S3 gateway (S3.md)."""

    master_key: SecretStr | None = Field(
        default=None,
        title="a string of 64 hexadecimal digits",
        description="Master key that encrypts the secrets of access keys. Prefer NOS_EC_S3__MASTER_KEY in the"
        " environment, or master_key_file.",
    )
    master_key_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="File that contains the master key, as an alternative to master_key. Further lines may have older"
        " master keys. Other users must not be able to read it. A relative path in a file starts at the file's folder.",
    )
