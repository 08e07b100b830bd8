"""A gateway behind a proxy, and clients that pretend to be one."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from nos_ec.composition.wiring import System
from tests.service.s3.s3_gateway import SETTINGS, Gateway, refused, serving

HOST = "photos.s3.example.com"


def logged_remotes(logged: list[Any]) -> list[str]:
    return [line["remote"] for line in logged if line["event"] == "access"]


def forwarding(client: Any, **headers: str) -> Any:
    """A client whose requests come with these headers, which its proxy adds after they were signed."""

    def add(request: Any, **_: Any) -> None:
        for name, value in headers.items():
            request.headers[name.replace("_", "-")] = value

    client.meta.events.register("before-send.s3", add)
    return client


@pytest.mark.parametrize("trusted", ["127.0.0.0/8, ::1", "10.0.0.0/8", ""])
def test_only_named_proxies_are_believed(system: System, trusted: str) -> None:
    settings = SETTINGS.model_copy(update={"trusted_proxies": trusted, "access_log": True})
    believed = trusted.startswith("127")
    with serving(system, settings) as gateway, structlog.testing.capture_logs() as logged:
        gateway.client("ann").create_bucket(Bucket="photos")
        ann = forwarding(gateway.client("ann"), X_Forwarded_For="1.1.1.1, 198.51.100.9", X_Forwarded_Proto="https")
        ann.put_object(Bucket="photos", Key="k", Body=b"x", ACL="public-read")
        upload = ann.create_multipart_upload(Bucket="photos", Key="u")["UploadId"]
        of_upload = {"Bucket": "photos", "Key": "u", "UploadId": upload}
        etag = ann.upload_part(**of_upload, PartNumber=1, Body=b"part")["ETag"]
        parts = {"Parts": [{"ETag": etag, "PartNumber": 1}]}
        location = ann.complete_multipart_upload(**of_upload, MultipartUpload=parts)["Location"]
        assert location.startswith("https://" if believed else "http://")
        status, body, _ = gateway.raw("GET", "/k", X_Forwarded_Host=HOST)
        assert (status, body == b"x") == ((200, True) if believed else (404, False))
        status, body, _ = gateway.raw("GET", "/k", X_Forwarded_Host=f"{HOST}, other")
        assert status == (400 if believed else 404)
        assert gateway.raw("GET", "/k", Host=HOST)[:2] == (200, b"x")
        assert set(logged_remotes(logged)[1:5]) == {"198.51.100.9" if believed else "127.0.0.1"}


def test_the_host_that_the_client_has_signed(system: System) -> None:
    settings = SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1"})
    with serving(system, settings) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        address = gateway.url.removeprefix("http://")
        through = forwarding(gateway.client("ann"), Host="gateway.internal", X_Forwarded_Host=address)
        through.list_objects_v2(Bucket="photos")
        lost = forwarding(gateway.client("ann"), Host="gateway.internal")
        refused("SignatureDoesNotMatch", 403, lost.list_objects_v2, Bucket="photos")
        changed = forwarding(gateway.client("ann"), X_Forwarded_Host="elsewhere.example.com")
        refused("SignatureDoesNotMatch", 403, changed.list_objects_v2, Bucket="photos")


def test_a_client_cannot_choose_the_host_that_is_signed(gateway: Gateway, ann: Any) -> None:
    claims = forwarding(gateway.client("ann"), X_Forwarded_Host="elsewhere.example.com")
    claims.list_objects_v2(Bucket="photos")
