"""The XML of S3: botocore reads what we write, and we read what it writes, and nothing that was made to do harm."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from botocore.handlers import decode_list_object, decode_list_object_v2, decode_list_object_versions
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from botocore.session import Session
from hypothesis import given, settings
from hypothesis import strategies as st

import nos_ec
from nos_ec.s3 import answers, documents
from nos_ec.s3.answers import ALL_USERS, Checksum, Grant, Listed, Owner, Page, Part, Upload
from nos_ec.s3.checksums import Algorithm
from nos_ec.s3.errors import STATUS_OF, S3Error

OWNER = Owner("owner-id", "Müller & <Söhne>")
THEIRS = {"ID": OWNER.id, "DisplayName": OWNER.name}
TIME_MS = 1_795_476_425_123
TIME_S = 1_795_476_425
HARD = ["a", "a b", "ü/漢/\U0001f600", "<a>&\"'", "]]>", "a\r\nb\tc", " a ", "%41+", "/", "\u0085\u2028", "\ufffd"]


@cache
def model() -> Any:
    return Session().get_service_model("s3")


def read(operation: str, body: bytes, status: int = 200) -> Any:
    parser = create_parser("rest-xml")
    answer = {"status_code": status, "headers": {}, "body": body}
    parsed = parser.parse(answer, model().operation_model(operation).output_shape)
    if status == 200:
        parsed.pop("ResponseMetadata")
    return parsed


def written(operation: str, **parameters: Any) -> bytes:
    """What botocore sends."""
    serializer = create_serializer("rest-xml")
    body = serializer.serialize_to_request(parameters, model().operation_model(operation))["body"]
    assert isinstance(body, bytes)
    return body


def page(names: list[str], folders: list[str], encode: bool, **changes: Any) -> Page:
    objects = [
        Listed(name, TIME_MS, "etag-1", size, checksum_algorithm="CRC32", checksum_type="FULL_OBJECT")
        for size, name in enumerate(names)
    ]
    values: dict[str, Any] = {"prefix": "p/&", "delimiter": "/", "max_keys": 1000, "truncated": True} | changes
    return Page("bucket", objects=objects, folders=folders, encode=encode, **values)


def decode(parsed: Any, handler: Any) -> Any:
    handler(parsed, {"encoding_type_auto_set": True})
    return parsed


@pytest.mark.parametrize("encode", [False, True])
def test_list_objects(encode: bool) -> None:
    body = answers.list_objects(page(HARD, HARD, encode), "mark er", HARD[3], OWNER)
    parsed = decode(read("ListObjects", body), decode_list_object)
    assert [(row["Key"], row["Size"]) for row in parsed["Contents"]] == [(name, n) for n, name in enumerate(HARD)]
    assert [row["Prefix"] for row in parsed["CommonPrefixes"]] == HARD
    first = parsed["Contents"][0]
    assert first["ETag"] == '"etag-1"'
    assert (first["ChecksumAlgorithm"], first["ChecksumType"]) == (["CRC32"], "FULL_OBJECT")
    assert first["Owner"] == THEIRS
    assert first["LastModified"].timestamp() == TIME_S
    assert (parsed["Marker"], parsed["NextMarker"]) == ("mark er", HARD[3])
    assert parsed["Prefix"] == "p/&"

    assert (parsed["Name"], parsed["MaxKeys"], parsed["IsTruncated"], parsed["Delimiter"]) == (
        "bucket",
        1000,
        True,
        "/",
    )


@pytest.mark.parametrize("prefix", ["a b", "\n", "\u00fc/", "a+b", "100%", "%41", "\x01", "\r", ""])
def test_a_client_reads_the_prefix_whether_it_decodes_or_not(prefix: str) -> None:
    asked = replace(page([], [], True), prefix=prefix)
    found = read("ListObjects", answers.list_objects(asked, "", None, OWNER))["Prefix"]
    assert unquote_plus(found) == prefix
    assert found == prefix or unquote_plus(prefix) != prefix or prefix == "\x01"


@given(st.integers(0, 250_000_000_000_000))
def test_a_time_has_all_its_digits_and_whole_seconds(time_ms: int) -> None:
    expected = datetime.fromtimestamp(time_ms // 1000, UTC)
    assert answers.time_of(time_ms) == expected.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("encode", [False, True])
def test_list_objects_v2(encode: bool) -> None:
    body = answers.list_objects_v2(
        page(HARD, ["a/"], encode), token="t&", next_token="n<", start_after="ü b", owner=None
    )
    parsed = decode(read("ListObjectsV2", body), decode_list_object_v2)
    assert [row["Key"] for row in parsed["Contents"]] == HARD
    assert "Owner" not in parsed["Contents"][0]
    assert (parsed["KeyCount"], parsed["ContinuationToken"]) == (len(HARD) + 1, "t&")
    assert (parsed["NextContinuationToken"], parsed["StartAfter"]) == ("n<", "ü b")
    body = answers.list_objects_v2(
        page([], [], encode, delimiter="", truncated=False, prefix=""),
        token="",
        next_token=None,
        start_after=None,
        owner=None,
    )
    parsed = read("ListObjectsV2", body)
    assert (parsed["KeyCount"], parsed["ContinuationToken"], parsed["Prefix"]) == (0, "", "")
    assert parsed.keys().isdisjoint({"Contents", "CommonPrefixes", "Delimiter", "NextContinuationToken", "StartAfter"})


@pytest.mark.parametrize("encode", [False, True])
def test_list_object_versions(encode: bool) -> None:
    rows = page(HARD, ["f/"], encode)
    marker = Listed("gone", TIME_MS, "", 0, version_id="v1", latest=False, delete_marker=True)
    rows = Page(**{name: getattr(rows, name) for name in rows.__slots__} | {"objects": [*rows.objects, marker]})
    body = answers.list_object_versions(
        rows,
        key_marker="k m",
        version_marker="",
        next_key_marker="n<",
        next_version_marker="null",
        owner=OWNER,
    )
    parsed = decode(read("ListObjectVersions", body), decode_list_object_versions)
    assert [row["Key"] for row in parsed["Versions"]] == HARD
    assert {(row["VersionId"], row["IsLatest"]) for row in parsed["Versions"]} == {("null", True)}
    (found,) = parsed["DeleteMarkers"]
    assert (found["Key"], found["VersionId"], found["IsLatest"], found["Owner"]) == ("gone", "v1", False, THEIRS)
    assert (parsed["KeyMarker"], parsed["NextKeyMarker"], parsed["NextVersionIdMarker"]) == ("k m", "n<", "null")


# What XML 1.0 has, and what it has not.
in_xml = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff", include_characters="\t\n\r")
any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=60)
@given(st.lists(st.text(in_xml, min_size=1, max_size=20), max_size=8))
def test_every_name_that_xml_can_say_arrives(names: list[str]) -> None:
    parsed = read("ListObjects", answers.list_objects(page(names, [], False), "", None, OWNER))
    assert [row["Key"] for row in parsed.get("Contents", [])] == names


@settings(max_examples=60)
@given(st.lists(any_text, max_size=8))
def test_every_name_arrives_when_it_is_encoded(names: list[str]) -> None:
    parsed = read("ListObjects", answers.list_objects(page(names, names, True), "", None, OWNER))
    parsed = decode(parsed, decode_list_object)
    assert [row["Key"] for row in parsed.get("Contents", [])] == names
    assert [row["Prefix"] for row in parsed.get("CommonPrefixes", [])] == names


@pytest.mark.parametrize("character", ["\0", "\1", "\x1f", "\ufffe", "\uffff"])
def test_a_name_that_xml_cannot_say_is_never_another_name(character: str) -> None:
    body = answers.list_objects(page([f"a{character}b"], [], False), "", None, OWNER)
    assert f"a&#x{ord(character):X};b".encode() in body
    with pytest.raises(Exception, match="invalid"):
        read("ListObjects", body)
    error = S3Error("NoSuchKey", f"There is no a{character}b.", Key=f"a{character}b")
    parsed = read("GetObject", answers.error_answer(error, "/b", "1", "h"), 404)
    assert parsed["Error"]["Key"] == "a\ufffdb"


@pytest.mark.parametrize("code", sorted(STATUS_OF))
def test_errors(code: str) -> None:
    error = S3Error(code, "Not <this> & that.", BucketName="b")
    body = answers.error_answer(error, "/b/k&", "REQ", "HOST")
    assert body.endswith(b"<RequestId>REQ</RequestId><HostId>HOST</HostId></Error>")
    parsed = read("GetObject", body, max(error.status, 400))
    said = {"Code": code, "Message": "Not <this> & that.", "BucketName": "b", "Resource": "/b/k&"}
    assert parsed["Error"] == said
    assert 300 <= error.status < 600


def test_list_buckets() -> None:
    body = answers.list_buckets(OWNER, [("b1", 0), ("b2", TIME_MS)], region="eu", prefix="b", next_token="t")
    parsed = read("ListBuckets", body)
    assert parsed["Owner"] == THEIRS
    assert [(bucket["Name"], bucket["BucketRegion"]) for bucket in parsed["Buckets"]] == [("b1", "eu"), ("b2", "eu")]
    assert parsed["Buckets"][1]["CreationDate"].timestamp() == TIME_S
    assert (parsed["Prefix"], parsed["ContinuationToken"]) == ("b", "t")
    assert read("ListBuckets", answers.list_buckets(OWNER, []))["Buckets"] == []


def test_deleted() -> None:
    failed = [("k3", "v", S3Error("AccessDenied", "No."))]
    parsed = read(
        "DeleteObjects", answers.deleted([answers.Deleted("k<1"), answers.Deleted("k2", "null")], failed, quiet=False)
    )
    assert parsed["Deleted"] == [{"Key": "k<1"}, {"Key": "k2", "VersionId": "null"}]
    assert parsed["Errors"] == [{"Key": "k3", "VersionId": "v", "Code": "AccessDenied", "Message": "No."}]
    assert read("DeleteObjects", answers.deleted([answers.Deleted("k")], [], quiet=True)) == {}


def test_copied() -> None:
    checksum = Checksum("SHA256", "abc=", "FULL_OBJECT")
    for operation, part, name in [
        ("CopyObject", False, "CopyObjectResult"),
        ("UploadPartCopy", True, "CopyPartResult"),
    ]:
        body = answers.copied("e", TIME_MS, checksum, part=part)
        assert f"<{name} ".encode() in body
        result = read(operation, body)[name]
        assert (result["ETag"], result["ChecksumSHA256"]) == ('"e"', "abc=")
        assert result["LastModified"].timestamp() == TIME_S


def test_multipart() -> None:
    parsed = read("CreateMultipartUpload", answers.upload_created("b", "k&", "id"))
    assert parsed == {"Bucket": "b", "Key": "k&", "UploadId": "id"}
    body = answers.upload_completed("http://h/b/k", "b", "k&", "e-2", Checksum("CRC32", "abc=-2", "COMPOSITE"))
    assert read("CompleteMultipartUpload", body) == {
        "Location": "http://h/b/k",
        "Bucket": "b",
        "Key": "k&",
        "ETag": '"e-2"',
        "ChecksumCRC32": "abc=-2",
        "ChecksumType": "COMPOSITE",
    }
    upload = Upload(
        "k&", "id", TIME_MS, Owner("bob", "Bob"), OWNER, checksum_algorithm="CRC32", checksum_type="COMPOSITE"
    )
    parts = [Part(2, 5, TIME_MS, "e2", Checksum("CRC32", "AAAA")), Part(7, 6, TIME_MS, "e7")]
    parsed = read("ListParts", answers.list_parts("b", upload, parts, marker=1, max_parts=2, truncated=True))
    assert [(part["PartNumber"], part["Size"], part["ETag"]) for part in parsed["Parts"]] == [
        (2, 5, '"e2"'),
        (7, 6, '"e7"'),
    ]
    assert parsed["Parts"][0]["ChecksumCRC32"] == "AAAA"
    assert (parsed["PartNumberMarker"], parsed["NextPartNumberMarker"], parsed["MaxParts"]) == (1, 7, 2)
    assert (parsed["IsTruncated"], parsed["Owner"], parsed["Initiator"]["ID"]) == (True, THEIRS, "bob")
    assert (parsed["ChecksumAlgorithm"], parsed["ChecksumType"], parsed["Key"]) == ("CRC32", "COMPOSITE", "k&")
    body = answers.list_uploads(
        "b",
        [upload],
        ["f/"],
        prefix="",
        delimiter="/",
        key_marker="",
        id_marker="",
        next_key_marker="k&",
        next_id_marker="id",
        max_uploads=1,
        encode=False,
    )
    parsed = read("ListMultipartUploads", body)
    (found,) = parsed["Uploads"]
    assert (found["Key"], found["UploadId"], found["Owner"], found["Initiator"]["ID"]) == ("k&", "id", THEIRS, "bob")
    assert (parsed["NextKeyMarker"], parsed["NextUploadIdMarker"], parsed["IsTruncated"]) == ("k&", "id", True)
    assert parsed["CommonPrefixes"] == [{"Prefix": "f/"}]


def test_tagging_location_versioning() -> None:
    tags = {"a": "1", "<&": ""}
    body = answers.tagging(tags)
    assert read("GetObjectTagging", body)["TagSet"] == [{"Key": "a", "Value": "1"}, {"Key": "<&", "Value": ""}]
    assert documents.tagging(body) == tags
    assert read("GetBucketVersioning", answers.versioning(None)) == {}
    assert read("GetBucketVersioning", answers.versioning("Enabled")) == {"Status": "Enabled"}
    assert b">eu-1</LocationConstraint>" in answers.location("eu-1")
    assert b"></LocationConstraint>" in answers.location("us-east-1")


def test_object_attributes() -> None:
    checksum = Checksum("SHA1", "abc=-2", "COMPOSITE")
    parts = [Part(1, 5, checksum=Checksum("SHA1", "x")), Part(2, 6)]
    body = answers.object_attributes(
        etag="e-2", checksum=checksum, storage_class="STANDARD", size=11, parts_count=2, parts=parts
    )
    parsed = read("GetObjectAttributes", body)
    assert (parsed["ETag"], parsed["ObjectSize"], parsed["StorageClass"]) == ("e-2", 11, "STANDARD")
    assert parsed["Checksum"] == {"ChecksumSHA1": "abc=-2", "ChecksumType": "COMPOSITE"}
    assert parsed["ObjectParts"]["TotalPartsCount"] == 2
    assert parsed["ObjectParts"]["Parts"] == [
        {"PartNumber": 1, "Size": 5, "ChecksumSHA1": "x"},
        {"PartNumber": 2, "Size": 6},
    ]
    assert read("GetObjectAttributes", answers.object_attributes(size=0)) == {"ObjectSize": 0}


def test_access_control_there_and_back() -> None:
    grants = [Grant("FULL_CONTROL", owner=OWNER), Grant("READ", uri=ALL_USERS)]
    body = answers.access_control(OWNER, grants)
    for operation in ("GetBucketAcl", "GetObjectAcl"):
        parsed = read(operation, body)
        assert parsed["Owner"] == THEIRS
        assert parsed["Grants"][0]["Grantee"] == {"Type": "CanonicalUser", **THEIRS}
        assert parsed["Grants"][1] == {"Grantee": {"Type": "Group", "URI": ALL_USERS}, "Permission": "READ"}
    sent = written("PutBucketAcl", Bucket="b", AccessControlPolicy=parsed)
    assert documents.access_control(sent) == documents.access_control(body) == (OWNER, grants)


def test_what_botocore_writes() -> None:
    # Nothing tells a parser that botocore meant a CR.
    objects = [{"Key": name} for name in HARD if "\r" not in name] + [
        {"Key": "v", "VersionId": "null", "ETag": "e", "Size": 5}
    ]
    sent = written("DeleteObjects", Bucket="b", Delete={"Objects": objects, "Quiet": True})
    found, quiet = documents.delete_objects(sent)
    assert quiet
    assert [row.key for row in found] == [row["Key"] for row in objects]
    assert (found[-1].version_id, found[-1].etag, found[-1].size) == ("null", "e", "5")
    parts = [{"PartNumber": 1, "ETag": '"e1"', "ChecksumCRC32": "AAAAAA=="}, {"PartNumber": 10000, "ETag": "e2"}]
    sent = written("CompleteMultipartUpload", Bucket="b", Key="k", UploadId="u", MultipartUpload={"Parts": parts})
    assert documents.complete_upload(sent) == [
        documents.CompletedPart(1, "e1", (Algorithm.CRC32, bytes(4))),
        documents.CompletedPart(10000, "e2"),
    ]
    tags = [{"Key": "a", "Value": "1"}, {"Key": "ü&", "Value": ""}]
    sent = written("PutObjectTagging", Bucket="b", Key="k", Tagging={"TagSet": tags})
    assert documents.tagging(sent) == {"a": "1", "ü&": ""}
    sent = written("CreateBucket", Bucket="b", CreateBucketConfiguration={"LocationConstraint": "eu-1"})
    assert documents.create_bucket(sent, 50) == ("eu-1", {})
    assert documents.create_bucket(b"", 50) == (None, {})
    sent = written("CreateBucket", Bucket="b", CreateBucketConfiguration={"Tags": tags})
    assert documents.create_bucket(sent, 50) == (None, {"a": "1", "ü&": ""})


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("<Tags/><Tags/>", "MalformedXML"),
        ("<LocationConstraint>a</LocationConstraint><LocationConstraint>a</LocationConstraint>", "MalformedXML"),
        ("<LocationConstraint><Tag/></LocationConstraint>", "MalformedXML"),
        ("<Tags><Tag><Key>a</Key></Tag></Tags>", "MalformedXML"),
        ("<Tags>a</Tags>", "MalformedXML"),
        ("<Other/>", "MalformedXML"),
        ("<Tags>" + "<Tag><Key>a</Key><Value/></Tag>" * 2 + "</Tags>", "InvalidTag"),
    ],
)
def test_a_bad_configuration_of_a_new_bucket_is_refused(inside: str, code: str) -> None:
    body = f"<CreateBucketConfiguration>{inside}</CreateBucketConfiguration>"
    assert code_of(partial(documents.create_bucket, tags_max=50), body) == code


def code_of(parse: Any, body: str | bytes, *options: Any) -> str:
    with pytest.raises(S3Error) as caught:
        parse(body.encode() if isinstance(body, str) else body, *options)
    return caught.value.code


BOMB = """<?xml version="1.0"?><!DOCTYPE Delete [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><Delete><Object><Key>&c;</Key></Object></Delete>"""
OUTSIDE = '<!DOCTYPE Delete [<!ENTITY a SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&a;</Key></Object></Delete>'


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<",
        "<Delete>",
        "<Other/>",
        "<Delete/>",
        "<Delete><Object/></Delete>",
        "<Delete><Object><Key/></Object></Delete>",
        "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
        "<Delete><Object><Key><a/></Key></Object></Delete>",
        "<Delete><Object><Key>a</Key><Unknown/></Object></Delete>",
        "<Delete>text<Object><Key>a</Key></Object></Delete>",
        "<Delete><Object><Key>a</Key></Object>text</Delete>",
        "<Delete><Object><Key>&undefined;</Key></Object></Delete>",
        "<Delete><Object><Key>&#0;</Key></Object></Delete>",
        "<Delete><Object><Key>a</Key></Object></Delete><Delete/>",
        "<Delete>" + "<Object><Key>a</Key></Object>" * 1001 + "</Delete>",
        BOMB,
        OUTSIDE,
        "<!DOCTYPE Delete><Delete><Object><Key>a</Key></Object></Delete>",
        "<Delete>" + "<a>" * 20 + "</a>" * 20 + "</Delete>",
        b"<Delete><Object><Key>\xff</Key></Object></Delete>",
        '<?xml version="1.0" encoding="UTF-16"?><Delete/>'.encode("utf-16"),
    ],
)
def test_bad_documents_are_refused(body: str | bytes) -> None:
    assert code_of(documents.delete_objects, body) == "MalformedXML"


def test_documents_are_bounded() -> None:
    assert code_of(documents.delete_objects, b" " * (documents.DOCUMENT_SIZE_MAX + 1)) == "MaxMessageLengthExceeded"
    for attack in ("<a>", "<a/>", '<a b="c"/>', "x", "<!-- -->", "<![CDATA[x]]>", "&amp;", "\n"):
        body = "<Delete>" + attack * ((documents.DOCUMENT_SIZE_MAX - 20) // len(attack)) + "</Delete>"
        began = time.process_time()
        assert code_of(documents.delete_objects, body) == "MalformedXML"
        assert time.process_time() - began < 5


def test_long_namespaces_are_not_repeated_in_each_name() -> None:
    """A parser that prefixes each name with its namespace would make gigabytes of these documents."""
    for declared, tag in ((' xmlns="{}"', "x{}"), (' xmlns:a="{}"', "a:x{}")):
        top = "a:Delete" if ":a" in declared else "Delete"
        names = "".join(f"<{tag.format(number)}/>" for number in range(50_000))
        body = f"<{top}{declared.format('u' * 1_000_000)}>{names}</{top}>"
        began = time.process_time()
        assert code_of(documents.delete_objects, body) == "MalformedXML"
        assert time.process_time() - began < 5
    many = " ".join(f'x{number}=""' for number in range(100_000))
    assert code_of(documents.delete_objects, f"<Delete {many}><Object><Key>a</Key></Object></Delete>") == "MalformedXML"
    named = f'<Delete xmlns="{"u" * documents.NAMESPACE_LENGTH_MAX}"><Object><Key>a</Key></Object></Delete>'
    assert [one.key for one in documents.delete_objects(named.encode())[0]] == ["a"]


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ("", "MalformedXML"),
        ("<Part><PartNumber>1</PartNumber></Part>", "MalformedXML"),
        ("<Part><PartNumber>x</PartNumber><ETag>e</ETag></Part>", "MalformedXML"),
        ("<Part><PartNumber>0</PartNumber><ETag>e</ETag></Part>", "InvalidArgument"),
        ("<Part><PartNumber>10001</PartNumber><ETag>e</ETag></Part>", "InvalidArgument"),
        ("".join(f"<Part><PartNumber>{n}</PartNumber><ETag>e</ETag></Part>" for n in (2, 1)), "InvalidPartOrder"),
        ("<Part><PartNumber>1</PartNumber><ETag>e</ETag><ChecksumCRC16>A</ChecksumCRC16></Part>", "NotImplemented"),
        ("<Part><PartNumber>1</PartNumber><ETag>e</ETag><ChecksumCRC32>A</ChecksumCRC32></Part>", "InvalidRequest"),
    ],
)
def test_bad_parts_are_refused(parts: str, code: str) -> None:
    body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
    assert code_of(documents.complete_upload, body) == code


def test_ten_thousand_parts() -> None:
    parts = "".join(
        f"<Part><ChecksumCRC32>AAAAAA==</ChecksumCRC32><ETag>&quot;{n:032x}&quot;</ETag><PartNumber>{n}</PartNumber></Part>"
        for n in range(1, 10_001)
    )
    body = f'<CompleteMultipartUpload xmlns="{answers.NAMESPACE}">{parts}</CompleteMultipartUpload>'
    assert len(documents.complete_upload(body.encode())) == 10_000


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ([("k" * 129, "")], "InvalidTag"),
        ([("", "")], "InvalidTag"),
        ([("k", "v" * 257)], "InvalidTag"),
        ([("aws:k", "v")], "InvalidTag"),
        ([("k", "v"), ("k", "w")], "InvalidTag"),
        ([(str(n), "v") for n in range(11)], "InvalidTag"),
    ],
)
def test_bad_tags_are_refused(tags: list[tuple[str, str]], code: str) -> None:
    pairs = "".join(f"<Tag><Key>{key}</Key><Value>{value}</Value></Tag>" for key, value in tags)
    assert code_of(documents.tagging, f"<Tagging><TagSet>{pairs}</TagSet></Tagging>") == code
    header = "&".join("=".join(pair) for pair in tags)
    in_header = "InvalidArgument" if len(dict(tags)) < len(tags) else code
    assert code_of(lambda body: documents.tagging_header(body.decode()), header) == in_header


def test_the_tagging_header() -> None:
    assert documents.tagging_header("a=b%20c&d=&e") == {"a": "b c", "d": "", "e": ""}
    assert documents.tagging_header("") == {}
    assert code_of(lambda body: documents.tagging_header(body.decode()), "a=%FF") == "InvalidArgument"
    assert code_of(documents.tagging, "<Tagging/>") == "MalformedXML"


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("", "MalformedACLError"),
        ("<Owner><DisplayName>a</DisplayName></Owner>", "MalformedACLError"),
        ("<Owner><ID>a</ID></Owner><AccessControlList><Grant/></AccessControlList>", "MalformedACLError"),
        ("<Owner><ID>a</ID></Owner><Unknown/>", "MalformedXML"),
        ("<Owner><ID>a</ID></Owner><Owner><ID>b</ID></Owner>", "MalformedACLError"),
        ("<Owner><ID>a</ID></Owner><AccessControlList/><AccessControlList/>", "MalformedACLError"),
    ],
)
def test_bad_acls_are_refused(inside: str, code: str) -> None:
    body = f"<AccessControlPolicy>{inside}</AccessControlPolicy>"
    assert code_of(documents.access_control, body) == code


@pytest.mark.parametrize(
    ("kind", "permission", "code"),
    [
        ("CanonicalUser", "ALL", "MalformedACLError"),
        ("Other", "READ", "MalformedACLError"),
        ("AmazonCustomerByEmail", "READ", "UnresolvableGrantByEmailAddress"),
    ],
)
def test_bad_grants_are_refused(kind: str, permission: str, code: str) -> None:
    body = answers.access_control(OWNER, [Grant("READ", owner=OWNER)]).decode()
    body = body.replace('"CanonicalUser"', f'"{kind}"').replace(">READ<", f">{permission}<")
    assert code_of(documents.access_control, body) == code


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        (f"<Object><Key>{'a' * 1025}</Key></Object>", "KeyTooLongError"),
        ("<Object><Key>a</Key><VersionId/></Object>", "InvalidArgument"),
        ("<Object><Key>a</Key></Object><Quiet>true</Quiet><Quiet>false</Quiet>", "MalformedXML"),
    ],
)
def test_bad_deletions_are_refused(inside: str, code: str) -> None:
    assert code_of(documents.delete_objects, f"<Delete>{inside}</Delete>") == code


def test_a_bucket_of_another_kind_is_not_there() -> None:
    body = "<CreateBucketConfiguration><Bucket><Type>Directory</Type></Bucket></CreateBucketConfiguration>"
    assert code_of(partial(documents.create_bucket, tags_max=50), body) == "NotImplemented"


def test_every_error_in_the_code_has_a_status() -> None:
    """`S3Error` of another code would be answered with 500."""
    folder = Path(nos_ec.__file__).parent
    codes = {
        code for path in folder.rglob("*.py") for code in re.findall(r'S3Error\(\s*"([A-Za-z.]+)"', path.read_text())
    }
    assert "OperationAborted" in codes
    assert codes <= STATUS_OF.keys()
