"""S3 clients of a chaos run: they use a gateway that is killed and restarted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.ids import ObjectKey
from tests.rig.chaos.chaos_fleet import Actor
from tests.rig.dev_servers import free_port
from tests.rig.s3.s3_gateway import MASTER_KEY, Access

ACTOR = "s3-0"
"""The gateway's name in a fleet."""
FIRST_WRITER = 100
"""The number of the first writer that uses S3: their buckets have other names."""
ANSWER_S_MAX = 180
"""Longer than a gateway waits for a server. If a client gave up sooner, its request could still be executed later, and
the client would not know what is stored."""
START_S_MAX = 120.0
_MISSING = ("NoSuchKey", "NoSuchBucket", "404")


def gateway_actor(access: Access, **environment: str) -> Actor:
    """A gateway at this address. It has no /readyz."""
    more = {
        "NOS_EC_S3__MASTER_KEY": MASTER_KEY,
        "NOS_EC_S3__PORT": access.url.rpartition(":")[2],
    }
    return Actor(("s3", "serve"), more | environment)


def address() -> str:
    """A free one for a gateway."""
    return f"http://127.0.0.1:{free_port()}"


class S3Objects:
    """`Objects` of a store, through a gateway. Safe to call from several threads."""

    def __init__(self, access: Access, packed_size_max: int) -> None:
        """packed_size_max: of the store."""
        self.packed_size_max = packed_size_max
        config = Config(
            retries={"max_attempts": 0, "mode": "standard"},
            s3={"addressing_style": "path"},
            read_timeout=ANSWER_S_MAX,
            connect_timeout=ANSWER_S_MAX,
        )
        self._client = Session().create_client(
            "s3",
            region_name="eu-north-1",
            endpoint_url=access.url,
            aws_access_key_id=access.access_key,
            aws_secret_access_key=access.secret,
            config=config,
        )

    def create_buckets(self, names: Iterable[str]) -> None:
        """Create buckets, as soon as the gateway answers. Raises Transient when it does not."""
        deadline_s = time.monotonic() + START_S_MAX
        for name in names:
            while True:
                try:
                    self._ask("create_bucket", Bucket=name)
                    break
                except Transient:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.1)

    def put(self, key: ObjectKey, stream: BinaryIO) -> object:
        """See chaos_clients.Objects."""
        return self._ask("put_object", Bucket=key.bucket, Key=key.name, Body=stream)

    def put_many(self, objects: Sequence[tuple[ObjectKey, bytes]]) -> object:
        """See chaos_clients.Objects. One after the other."""
        return [self._ask("put_object", Bucket=key.bucket, Key=key.name, Body=data) for key, data in objects]

    def delete(self, key: ObjectKey) -> object:
        """See chaos_clients.Objects. It is not an error if there is no object."""
        return self._ask("delete_object", Bucket=key.bucket, Key=key.name)

    def get(self, key: ObjectKey) -> bytes:
        """See chaos_clients.Objects."""
        answer = self._ask("get_object", Bucket=key.bucket, Key=key.name)
        try:
            data: bytes = answer["Body"].read()
        except BotoCoreError as error:
            raise Transient(f"the answer broke off: {error}") from error
        return data

    def _ask(self, operation: str, **arguments: object) -> Any:
        try:
            return getattr(self._client, operation)(**arguments)
        except ClientError as error:
            if error.response["Error"]["Code"] in _MISSING:
                raise NotFound(str(error)) from error
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
            if error.response["Error"]["Code"] != "ServiceUnavailable":
                raise
            raise Transient(str(error)) from error
        except BotoCoreError as error:
            raise Transient(f"no answer: {error}") from error
