"""Multipart uploads over the S3 gateway, with botocore."""

from __future__ import annotations

import base64
import hashlib
import random
import threading
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import InvalidInput, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import UploadId, parts_bucket
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.uploads import COMPLETE_TRIES, MultipartUploads, StoredPart
from nos_ec.ports.metadata import ObjectRow
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.clock import FakeClock
from tests.rig.waiting import until
from tests.service.conftest import STRIPE, Bench
from tests.service.s3.s3_gateway import Gateway, refused

PART = 5 << 20


def body_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def begun(client: Any, key: str, bodies: dict[int, bytes], **options: Any) -> tuple[str, list[dict[str, Any]]]:
    """An upload with these parts, and what completes it."""
    upload_id = client.create_multipart_upload(Bucket="photos", Key=key, **options)["UploadId"]
    parts = []
    for number, body in bodies.items():
        answer = client.upload_part(Bucket="photos", Key=key, UploadId=upload_id, PartNumber=number, Body=body)
        assert answer["ETag"] == f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    return upload_id, sorted(parts, key=lambda part: part["PartNumber"])


def completed(client: Any, key: str, upload_id: str, parts: list[dict[str, Any]], **options: Any) -> Any:
    return client.complete_multipart_upload(
        Bucket="photos", Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}, **options
    )


def test_life_of_an_upload(gateway: Gateway, ann: Any) -> None:
    bodies = {3: body_of(1000, 3), 1: body_of(PART, 1), 2: body_of(PART + 17, 2)}
    options = {"ContentType": "text/x", "Metadata": {"a": "b"}, "Tagging": "t=1"}
    upload_id, parts = begun(ann, "k", bodies, **options)
    listed = ann.list_multipart_uploads(Bucket="photos")
    assert [(one["Key"], one["UploadId"]) for one in listed["Uploads"]] == [("k", upload_id)]
    of_parts = ann.list_parts(Bucket="photos", Key="k", UploadId=upload_id)
    assert [(part["PartNumber"], part["Size"]) for part in of_parts["Parts"]] == [(1, PART), (2, PART + 17), (3, 1000)]
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="k")
    assert "Contents" not in ann.list_objects_v2(Bucket="photos")

    etag = completed(ann, "k", upload_id, parts)["ETag"]
    whole = bodies[1] + bodies[2] + bodies[3]
    md5s = b"".join(hashlib.md5(bodies[n], usedforsecurity=False).digest() for n in (1, 2, 3))
    assert etag == f'"{hashlib.md5(md5s, usedforsecurity=False).hexdigest()}-3"'
    assert completed(ann, "k", upload_id, parts)["ETag"] == etag, "it may be repeated"
    got = ann.get_object(Bucket="photos", Key="k")
    assert got["Body"].read() == whole
    assert (got["ETag"], got["ContentType"], got["Metadata"], got["TagCount"]) == (etag, "text/x", {"a": "b"}, 1)
    (entry,) = ann.list_objects_v2(Bucket="photos")["Contents"]
    assert (entry["Key"], entry["Size"], entry["ETag"]) == ("k", len(whole), etag)
    assert "Uploads" not in ann.list_multipart_uploads(Bucket="photos")
    refused("NoSuchUpload", 404, ann.list_parts, Bucket="photos", Key="k", UploadId=upload_id)
    part = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "PartNumber": 1, "Body": b"x"}
    refused("NoSuchUpload", 404, ann.upload_part, **part)
    assert [bucket["Name"] for bucket in gateway.client("root").list_buckets()["Buckets"]] == []

    for first, last in ((0, 0), (PART - 1, PART), (PART, PART + 16), (PART + 5, 2 * PART + 18), (7, 2 * PART + 1016)):
        ranged = ann.get_object(Bucket="photos", Key="k", Range=f"bytes={first}-{last}")
        assert ranged["Body"].read() == whole[first : last + 1]
        assert ranged["ContentRange"] == f"bytes {first}-{last}/{len(whole)}"
    second = ann.get_object(Bucket="photos", Key="k", PartNumber=2)
    assert (second["Body"].read(), second["PartsCount"]) == (bodies[2], 3)
    refused("InvalidPart", 400, ann.get_object, Bucket="photos", Key="k", PartNumber=4)
    ann.put_object_tagging(Bucket="photos", Key="k", Tagging={"TagSet": [{"Key": "u", "Value": "2"}]})
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == whole
    ann.copy_object(Bucket="photos", Key="copy", CopySource="photos/k")
    copy = ann.get_object(Bucket="photos", Key="copy")
    assert (copy["Body"].read(), copy["ETag"]) == (whole, f'"{hashlib.md5(whole, usedforsecurity=False).hexdigest()}"')
    refused("PreconditionFailed", 412, ann.put_object, Bucket="photos", Key="k", Body=b"", IfMatch=etag[:-2] + '4"')
    ann.put_object(Bucket="photos", Key="k", Body=b"new", IfMatch=etag)
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"new"


def test_packed_and_deleted(gateway: Gateway, ann: Any, bench: Bench) -> None:
    system = gateway.system
    bodies = {1: body_of(PART, 1), 2: body_of(30_000, 2)}
    ann.put_object(Bucket="photos", Key="other", Body=b"o" * 1000)
    upload_id, parts = begun(ann, "k", bodies)
    completed(ann, "k", upload_id, parts)
    bench.pack(system)
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == bodies[1] + bodies[2]
    reading = ann.get_object(Bucket="photos", Key="k")["Body"]
    start = reading.read(10)
    ann.delete_object(Bucket="photos", Key="k")
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="k")
    assert start + reading.read() == bodies[1] + bodies[2], "a reader gets all of the version that it began to read"
    gc_service(system).run_once()
    hidden = parts_bucket("photos")
    assert len(system.metadata.list_objects(hidden, "", "", 10)) == 2, "readers have time"
    system.clock = LaterClock(PARTS_GRACE_MS + 1000)
    gc_service(system).run_once()
    assert system.metadata.list_objects(hidden, "", "", 10) == []
    assert system.metadata.uploads_after(None, 10) == []
    assert ann.get_object(Bucket="photos", Key="other")["Body"].read() == b"o" * 1000


def test_parts_are_stored_again_and_left_out(gateway: Gateway, ann: Any) -> None:
    upload_id, _ = begun(ann, "k", {1: b"first", 2: b"second", 7: b"seventh"})
    again = ann.upload_part(Bucket="photos", Key="k", UploadId=upload_id, PartNumber=7, Body=b"other")
    answer = completed(ann, "k", upload_id, [{"PartNumber": 7, "ETag": again["ETag"]}])
    assert answer["ETag"].endswith('-1"')
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"other"
    assert ann.get_object(Bucket="photos", Key="k", PartNumber=7)["Body"].read() == b"other"
    names = gateway.system.metadata.list_names(parts_bucket("photos"), "", "", 9)
    assert names == [f"{upload_id}/00007"]


def test_completions_that_are_refused(ann: Any) -> None:
    upload_id, parts = begun(ann, "k", {1: b"small", 2: b"last"})
    first, last = parts
    other = {"PartNumber": 1, "ETag": last["ETag"]}
    for listed, code in (
        ([first, last], "EntityTooSmall"),
        ([other], "InvalidPart"),
        ([{"PartNumber": 3, "ETag": first["ETag"]}], "InvalidPart"),
        ([last, first], "InvalidPartOrder"),
        ([first, last, first], "InvalidPartOrder"),
        ([first, other], "InvalidPart"),
        ([], "MalformedXML"),
    ):
        arguments = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "MultipartUpload": {"Parts": listed}}
        refused(code, 400, ann.complete_multipart_upload, **arguments)
    refused("NoSuchUpload", 404, completed, client=ann, key="other", upload_id=upload_id, parts=[first])
    refused("NoSuchUpload", 404, completed, client=ann, key="k", upload_id="x" * 32, parts=[first])
    refused("InvalidRequest", 400, completed, client=ann, key="k", upload_id=upload_id, parts=[first], MpuObjectSize=4)
    ann.put_object(Bucket="photos", Key="k", Body=b"there")
    absent = {"client": ann, "key": "k", "upload_id": upload_id, "parts": [first], "IfNoneMatch": "*"}
    refused("PreconditionFailed", 412, completed, **absent)
    ann.delete_object(Bucket="photos", Key="k")
    match = {"client": ann, "key": "k", "upload_id": upload_id, "parts": [first], "IfMatch": "0" * 32}
    refused("NoSuchKey", 404, completed, **match)
    completed(**absent)
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"small"


def test_part_numbers(ann: Any) -> None:
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
    part = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "Body": b""}
    for number in (0, 10_001):
        refused("InvalidArgument", 400, ann.upload_part, PartNumber=number, **part)
    etag = ann.upload_part(PartNumber=10_000, **part)["ETag"]
    completed(ann, "k", upload_id, [{"PartNumber": 10_000, "ETag": etag}])
    got = ann.get_object(Bucket="photos", Key="k")
    assert (got["Body"].read(), got["ContentLength"]) == (b"", 0)


def test_an_upload_is_aborted(gateway: Gateway, ann: Any) -> None:
    system = gateway.system
    upload_id, parts = begun(ann, "k", {1: b"first", 2: body_of(PART)})
    old, _ = begun(ann, "old", {1: b"old"})
    ann.abort_multipart_upload(Bucket="photos", Key="k", UploadId=upload_id)
    refused("NoSuchUpload", 404, ann.abort_multipart_upload, Bucket="photos", Key="k", UploadId=upload_id)
    refused("NoSuchUpload", 404, completed, client=ann, key="k", upload_id=upload_id, parts=parts)
    gc_service(system).run_once()
    assert system.metadata.list_names(parts_bucket("photos"), "", "", 9) == [f"{old}/00001"]
    system.clock = LaterClock(system.settings.s3.abort_uploads_ms + 60_000)
    gc_service(system).run_once()
    assert system.metadata.list_names(parts_bucket("photos"), "", "", 9) == []
    assert system.metadata.uploads_after(None, 9) == []


def test_a_bucket_with_uploads_is_deleted(gateway: Gateway, ann: Any) -> None:
    upload_id, parts = begun(ann, "k", {1: b"first"})
    ann.delete_bucket(Bucket="photos")
    bob = gateway.client("bob")
    bob.create_bucket(Bucket="photos")
    assert "Uploads" not in bob.list_multipart_uploads(Bucket="photos")
    refused("NoSuchUpload", 404, completed, client=bob, key="k", upload_id=upload_id, parts=parts)


def test_who_may_upload(gateway: Gateway, ann: Any) -> None:
    upload_id, parts = begun(ann, "k", {1: b"first"})
    bob = gateway.client("bob")
    of_upload = {"Bucket": "photos", "Key": "k", "UploadId": upload_id}
    for call, arguments in (
        (bob.create_multipart_upload, {"Bucket": "photos", "Key": "k"}),
        (bob.upload_part, {**of_upload, "PartNumber": 1, "Body": b"x"}),
        (bob.list_parts, of_upload),
        (bob.abort_multipart_upload, of_upload),
        (bob.complete_multipart_upload, {**of_upload, "MultipartUpload": {"Parts": parts}}),
        (bob.list_multipart_uploads, {"Bucket": "photos"}),
    ):
        refused("AccessDenied", 403, call, **arguments)
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    upload_id, _ = begun(bob, "k", {1: b"first"})
    for ownership, owner in (("ObjectWriter", "bob"), ("BucketOwnerEnforced", "ann")):
        controls = {"Rules": [{"ObjectOwnership": ownership}]}
        if owner == "ann":
            ann.put_bucket_acl(Bucket="photos", ACL="private")
        ann.put_bucket_ownership_controls(Bucket="photos", OwnershipControls=controls)
        listed = ann.list_parts(**of_upload | {"UploadId": upload_id})
        assert (listed["Initiator"]["ID"], listed["Owner"]["ID"]) == ("bob", owner)


def test_a_part_that_is_listed_as_often_as_it_was_sent(ann: Any) -> None:
    """The case multipart_resend_first_finishes_last of s3-tests: the last entry counts."""
    upload_id, (early,) = begun(ann, "k", {1: b"early"})
    of_upload = {"Bucket": "photos", "Key": "k", "UploadId": upload_id}
    late = {"PartNumber": 1, "ETag": ann.upload_part(**of_upload, PartNumber=1, Body=b"late")["ETag"]}
    refused("InvalidPart", 400, ann.complete_multipart_upload, **of_upload, MultipartUpload={"Parts": [late, early]})
    completed(ann, "k", upload_id, [early, late])
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"late"


def test_checksums_of_parts_and_of_the_whole(ann: Any) -> None:
    bodies = {1: body_of(PART, 1), 2: body_of(99, 2)}
    whole = bodies[1] + bodies[2]
    for algorithm, kind in (
        ("CRC32", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT"),
        ("SHA256", "COMPOSITE"),
        ("SHA1", "COMPOSITE"),
    ):
        name = f"Checksum{algorithm}"
        told = {"ChecksumAlgorithm": algorithm, "ChecksumType": kind}
        upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", **told)["UploadId"]
        of_upload = {"Bucket": "photos", "Key": "k", "UploadId": upload_id}
        parts = []
        for number, body in bodies.items():
            answer = ann.upload_part(**of_upload, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
            parts.append({"PartNumber": number, "ETag": answer["ETag"], name: answer[name]})
        wrong = {**parts[0], name: parts[1][name]}
        arguments = {**of_upload, "MultipartUpload": {"Parts": [wrong, parts[1]]}}
        refused("InvalidPart", 400, ann.complete_multipart_upload, **arguments)
        (first, _) = ann.list_parts(**of_upload)["Parts"]
        assert first[name] == parts[0][name]
        made = completed(ann, "k", upload_id, parts, ChecksumType=kind)
        if kind == "FULL_OBJECT":
            ann.put_object(Bucket="photos", Key="one", Body=whole, ChecksumAlgorithm=algorithm)
            assert made[name] == ann.head_object(Bucket="photos", Key="one", ChecksumMode="ENABLED")[name]
        else:
            digests = b"".join(base64.b64decode(part[name]) for part in parts)
            if algorithm.startswith("SHA"):
                expected = hashlib.new(algorithm.lower(), digests, usedforsecurity=False).digest()
                assert made[name] == base64.b64encode(expected).decode() + "-2"
            assert made[name].endswith("-2")
        head = ann.head_object(Bucket="photos", Key="k", ChecksumMode="ENABLED")
        assert (head[name], head["ChecksumType"]) == (made[name], kind)
        told_parts = ann.get_object_attributes(Bucket="photos", Key="k", ObjectAttributes=["ObjectParts", "Checksum"])
        of_parts = told_parts["ObjectParts"]
        assert (of_parts["TotalPartsCount"], [part["Size"] for part in of_parts["Parts"]]) == (2, [PART, 99])
        if kind == "COMPOSITE":
            assert [part[name] for part in of_parts["Parts"]] == [part[name] for part in parts]
        assert told_parts["Checksum"] == {name: made[name].removesuffix("-2"), "ChecksumType": kind}
        for part, body in zip(parts, bodies.values(), strict=True):
            for read in (ann.get_object, ann.head_object):
                found = read(Bucket="photos", Key="k", PartNumber=part["PartNumber"], ChecksumMode="ENABLED")
                assert (found["ChecksumType"], found[name]) == (kind, part[name])
                assert (found["ContentLength"], found["PartsCount"]) == (len(body), 2)
                assert "Body" not in found or found["Body"].read() == body
        in_range = ann.get_object(Bucket="photos", Key="k", Range="bytes=0-9", ChecksumMode="ENABLED")
        assert (name in in_range, "ChecksumType" in in_range) == (False, False)
        assert in_range["Body"].read() == whole[:10]
        assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == whole
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    part = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "PartNumber": 1, "Body": b"x"}
    refused("InvalidRequest", 400, ann.upload_part, **part, ChecksumAlgorithm="CRC32")


def test_parts_are_copied(gateway: Gateway, ann: Any) -> None:
    source = body_of(PART + 1000)
    ann.put_object(Bucket="photos", Key="source", Body=source)
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
    of_upload = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "CopySource": "photos/source"}
    parts = []
    for number, header in ((1, f"bytes=0-{PART - 1}"), (2, "bytes=7-7"), (3, None)):
        options = {} if header is None else {"CopySourceRange": header}
        made = ann.upload_part_copy(PartNumber=number, **of_upload, **options)["CopyPartResult"]
        parts.append({"PartNumber": number, "ETag": made["ETag"]})
    refused("EntityTooSmall", 400, completed, client=ann, key="k", upload_id=upload_id, parts=parts)
    completed(ann, "k", upload_id, [parts[0], parts[2]])
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == source[:PART] + source
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
    of_upload["UploadId"] = upload_id
    for header, code, status in (
        ("bytes=0-99999999", "InvalidRange", 416),
        ("bytes=5-1", "InvalidArgument", 400),
        ("bytes=-5", "InvalidArgument", 400),
        ("0-5", "InvalidArgument", 400),
    ):
        refused(code, status, ann.upload_part_copy, PartNumber=1, CopySourceRange=header, **of_upload)
    refused("AccessDenied", 403, gateway.client("bob").upload_part_copy, PartNumber=1, **of_upload)


def test_small_ranges_across_borders_are_copied_whole(gateway: Gateway, ann: Any) -> None:
    """The borders are those of a block, a tail and a part: the store returns such a range in pieces."""
    large, first, second = body_of(9 * STRIPE + STRIPE // 2 + 17, 1), body_of(PART, 2), body_of(3 * STRIPE, 3)
    ann.put_object(Bucket="photos", Key="large", Body=large)
    completed(ann, "composed", *begun(ann, "composed", {1: first, 2: second}))
    (row,) = gateway.system.client.store().list_objects("photos", "large", "", 1)
    segments = gateway.system.metadata.segments(row.object_id, row.version)
    ends = [sum(one.extent.length for one in segments[: number + 1]) for number in range(len(segments))]
    assert len(ends) == 2
    assert ends[1] < len(large), "it has a tail"
    borders = [("large", large, end) for end in ends] + [("composed", first + second, PART)]
    for source, data, border in borders:
        for begin, end in ((border - 1, border + 1), (border - 1000, border + 17), (border - STRIPE, len(data))):
            upload_id = ann.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
            of_upload = {"Bucket": "photos", "Key": "k", "UploadId": upload_id}
            copied = {"CopySource": f"photos/{source}", "CopySourceRange": f"bytes={begin}-{end - 1}"}
            made = ann.upload_part_copy(PartNumber=1, **copied, **of_upload)["CopyPartResult"]
            assert [part["Size"] for part in ann.list_parts(**of_upload)["Parts"]] == [end - begin]
            completed(ann, "k", upload_id, [{"PartNumber": 1, "ETag": made["ETag"]}])
            assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == data[begin:end]


def test_uploads_are_listed(ann: Any) -> None:
    ids: dict[str, list[str]] = {}
    for key in ("a/1", "a/1", "a/2", "b", "c/1", "d"):
        ids.setdefault(key, []).append(ann.create_multipart_upload(Bucket="photos", Key=key)["UploadId"])
    expected = [(key, one) for key, several in ids.items() for one in sorted(several)]
    for size in (1, 2, 9):
        found: list[tuple[str, str]] = []
        markers: dict[str, str] = {}
        while True:
            page = ann.list_multipart_uploads(Bucket="photos", MaxUploads=size, **markers)
            found += [(one["Key"], one["UploadId"]) for one in page["Uploads"]]
            if not page["IsTruncated"]:
                break
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        assert found == expected
    for size in (1, 9):
        entries: list[str] = []
        marker = ""
        while True:
            page = ann.list_multipart_uploads(Bucket="photos", Delimiter="/", MaxUploads=size, KeyMarker=marker)
            entries += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
            entries += [one["Key"] for one in page.get("Uploads", [])]
            if not page["IsTruncated"]:
                break
            marker = page["NextKeyMarker"]
        assert sorted(entries) == ["a/", "b", "c/", "d"]
    assert [one["Key"] for one in ann.list_multipart_uploads(Bucket="photos", Prefix="c")["Uploads"]] == ["c/1"]


def is_completed(client: Any, key: str, upload_id: str, parts: list[dict[str, Any]]) -> bool:
    """Whether it could be completed. If not, the client is to try again, as S3 clients do after a 503."""
    try:
        completed(client, key, upload_id, parts)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ServiceUnavailable":
            raise
        return False
    return True


def test_parts_at_the_same_time_as_a_completion(ann: Any, gateway: Gateway) -> None:
    """What is completed has exactly the parts that were listed, whatever is stored meanwhile."""
    clients = [gateway.client("ann") for _ in range(4)]
    for attempt in range(5):
        upload_id, parts = begun(ann, "k", {1: b"first"})
        stored: list[str] = []

        def store(client: Any, upload_id: str = upload_id, stored: list[str] = stored) -> None:
            for _ in range(5):
                try:
                    client.upload_part(Bucket="photos", Key="k", UploadId=upload_id, PartNumber=1, Body=b"first")
                except client.exceptions.ClientError as error:
                    stored.append(error.response["Error"]["Code"])

        threads = [threading.Thread(target=store, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        until(partial(is_completed, ann, "k", upload_id, parts), "it is completed")
        for thread in threads:
            thread.join()
        assert set(stored) <= {"NoSuchUpload"}, attempt
        assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"first"


def test_a_completion_waits_longer_and_longer_for_parts(gateway: Gateway, ann: Any) -> None:
    upload_id, _ = begun(ann, "k", {1: b"first"})
    uploads = gateway.system.client.uploads()
    uploads._clock = clock = FakeClock(began_ms := gateway.system.clock.now_ms())
    upload = uploads.find_open(UploadId(bytes.fromhex(upload_id)), ObjectKey("photos", "k"))
    tries_ms: list[int] = []

    def choose(parts: Sequence[StoredPart]) -> tuple[Sequence[StoredPart], dict[str, str]]:
        tries_ms.append(clock.now_ms() - began_ms)
        if len(tries_ms) != last:
            uploads.put_part(upload, 1, BytesIO(b"again"), b"")
        return parts, {}

    last = 0
    with pytest.raises(Transient, match="were stored repeatedly"):
        uploads.complete(upload, choose)
    assert tries_ms == [0, 10, 30, 70, 150, 310, 630, 1130, 1630, 2130]
    tries_ms.clear()
    last = COMPLETE_TRIES
    assert uploads.complete(upload, choose).composition is not None
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"again"


def test_several_complete_an_upload_at_once(gateway: Gateway, ann: Any) -> None:
    clients = [gateway.client("ann") for _ in range(8)]
    upload_id, parts = begun(ann, "k", {1: b"first"})
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda client=client: answers.append(completed(client, "k", upload_id, parts)["ETag"]))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1
    gateway.system.clock = LaterClock(PARTS_GRACE_MS + 1000)
    gc_service(gateway.system).run_once()
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"first"


def test_a_completion_is_repeated_with_the_same_parts_only(ann: Any) -> None:
    bodies = {1: body_of(PART, 1), 2: body_of(PART, 2), 3: b"third", 4: b"fourth"}
    upload_id, parts = begun(ann, "k", bodies)
    etag = completed(ann, "k", upload_id, parts[:3])["ETag"]
    assert completed(ann, "k", upload_id, parts[:3])["ETag"] == etag
    again = {"client": ann, "key": "k", "upload_id": upload_id}
    for others in parts[:2], parts[1:3], [parts[0], parts[2]]:
        refused("NoSuchUpload", 404, completed, parts=others, **again)
    wrong = [parts[0], {**parts[1], "ETag": parts[2]["ETag"]}, parts[2]]
    for others in parts, [*parts[:2], parts[3]], wrong:
        refused("InvalidPart", 400, completed, parts=others, **again)
    refused("InvalidRequest", 400, completed, parts=parts[:3], MpuObjectSize=17, **again)
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == bodies[1] + bodies[2] + b"third"


@pytest.mark.parametrize("turn", range(5))
def test_of_completions_with_other_parts_at_once_one_takes_effect(gateway: Gateway, ann: Any, turn: int) -> None:
    bodies = {1: body_of(PART, turn), 2: b"second", 3: b"third"}
    upload_id, parts = begun(ann, "k", bodies)
    lists = [[parts[0], parts[1]], [parts[0], parts[2]], [parts[0]]]
    won: list[tuple[int, str]] = []
    lost: list[str] = []

    def complete(which: int, client: Any) -> None:
        try:
            won.append((which, completed(client, "k", upload_id, lists[which])["ETag"]))
        except ClientError as error:
            lost.append(error.response["Error"]["Code"])

    clients = [gateway.client("ann") for _ in range(6)]
    threads = [threading.Thread(target=complete, args=(n % 3, client)) for n, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = ann.get_object(Bucket="photos", Key="k")
    assert len(won) == 2
    assert len(lost) == 4
    assert set(lost) <= {"NoSuchUpload", "InvalidPart"}
    assert {etag for _, etag in won} == {found["ETag"]}
    (which,) = {which for which, _ in won}
    assert found["Body"].read() == b"".join(bodies[one["PartNumber"]] for one in lists[which])


def test_a_new_bucket_has_no_uploads_of_an_older_one(
    gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateway died, or its database was away, before it had aborted them."""
    upload_id, parts = begun(ann, "k", {1: b"first"})
    with monkeypatch.context() as patched:
        patched.setattr(MultipartUploads, "abort_all", away)
        refused("ServiceUnavailable", 503, ann.delete_bucket, Bucket="photos")
    bob = gateway.client("bob")
    bob.create_bucket(Bucket="photos")
    assert "Uploads" not in bob.list_multipart_uploads(Bucket="photos")
    refused("NoSuchUpload", 404, completed, client=bob, key="k", upload_id=upload_id, parts=parts)


def away(*_: object) -> None:
    raise Transient("the database is away")


def test_parts_whose_checksums_were_not_stored(ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway of a part died after its last byte. The completion has the checksum, or it names no part."""
    body = body_of(PART)
    told = {"ChecksumAlgorithm": "SHA256", "ChecksumType": "COMPOSITE"}
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", **told)["UploadId"]
    of_part = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "PartNumber": 1}
    ann.put_object(Bucket="photos", Key="source", Body=body)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "set_attributes_of", away)
        ann.upload_part_copy(**of_part, CopySource="photos/source")
    digest = hashlib.sha256(body).digest()
    etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
    listed = {"PartNumber": 1, "ETag": etag, "ChecksumSHA256": base64.b64encode(digest).decode()}
    made = completed(ann, "k", upload_id, [listed])
    assert made["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(digest).digest()).decode() + "-1"


def test_attributes_leave_room_for_the_composition(ann: Any) -> None:
    tags = "&".join(f"{number}{'k' * 120}={'v' * 250}" for number in range(10))
    options = {"Tagging": tags, "Metadata": {"m": "x" * 1900}, "CacheControl": "c" * 2200}
    code = ""
    for longer in range(0, 1000, 20):
        told = {**options, "ContentLanguage": "l" * longer}
        try:
            upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", **told)["UploadId"]
        except ClientError as error:
            code = error.response["Error"]["Code"]
            break
        part = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "PartNumber": 1}
        etag = ann.upload_part(**part, Body=b"x")["ETag"]
        completed(ann, "k", upload_id, [{"PartNumber": 1, "ETag": etag}])
    assert longer > 0
    assert code in ("MetadataTooLarge", "InvalidArgument")


def test_commands_see_the_whole_object(ann: Any, bench: Bench) -> None:
    whole = body_of(PART) + b"0123456789"
    upload_id, parts = begun(ann, "k", {1: whole[:PART], 2: whole[PART:]})
    completed(ann, "k", upload_id, parts)
    for given, expected in (
        ("-10", whole[-10:]),
        (f"{PART - 1}-{PART}", whole[PART - 1 : PART + 1]),
        ("7-", whole[7:]),
    ):
        done = bench.run("get", "photos/k", "-o", "-", f"--range={given}")
        assert (done.returncode, done.stdout) == (0, expected)
    assert bench.run("get", "photos/k", "-o", "-").stdout == whole
    assert str(len(whole)).encode() in bench.run("ls", "-l", "photos/").stdout
    assert f"{len(whole):,} bytes".encode() in bench.run("ls", "--summarize", "photos/").stdout


def test_the_later_of_two_large_parts_is_the_one_that_is_acknowledged(gateway: Gateway, ann: Any) -> None:
    system = gateway.system
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
    uploads = system.client.uploads()
    upload = uploads.find_open(UploadId(bytes.fromhex(upload_id)), ObjectKey("photos", "k"))
    other = body_of(PART, 2)

    class Slow(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > PART // 2 and not stored:
                stored.append(uploads.put_part(upload, 1, BytesIO(other), b""))
            return super().read(size)

    stored: list[ObjectRow] = []
    with pytest.raises(Transient, match="send it again"):
        uploads.put_part(upload, 1, Slow(body_of(PART, 1)), b"")
    (part,) = uploads.list_parts(upload, 0, 9)
    assert part.row.md5 == hashlib.md5(other, usedforsecurity=False).digest()


def test_parts_are_changed_by_their_uploads_alone(gateway: Gateway, ann: Any) -> None:
    upload_id, _ = begun(ann, "k", {1: b"first"})
    store, key = gateway.system.client.store(), ObjectKey(parts_bucket("photos"), f"{upload_id}/00001")
    for change in (
        lambda: store.put(key, BytesIO(b"other")),
        lambda: store.put_many([(key, b"other")]),
        lambda: store.delete(key),
        lambda: store.delete_many([key]),
        lambda: store.set_attributes(key, b""),
    ):
        with pytest.raises(InvalidInput):
            change()
    forged = encode_attributes({"nos_ec:parts": "x"})
    with pytest.raises(InvalidInput, match="the store's own"):
        store.put(ObjectKey("photos", "k"), BytesIO(b""), forged)
