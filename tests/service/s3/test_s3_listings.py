"""Listings over the gateway: delimiters, markers, limits, encodings, and who may list."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.s3.s3_gateway import Gateway, refused

VERSIONS = ["list_objects", "list_objects_v2"]


def put(ann: Any, *names: str) -> None:
    for name in names:
        ann.put_object(Bucket="photos", Key=name, Body=name.encode())


def listed(page: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(keys, prefixes) of a page."""
    keys = [row["Key"] for row in page.get("Contents", [])]
    return keys, [row["Prefix"] for row in page.get("CommonPrefixes", [])]


def pages(ann: Any, prefix: str, limit: int) -> list[tuple[list[str], list[str], bool, str | None]]:
    """All pages of a listing with folders, by version 1."""
    found, marker = [], ""
    while True:
        page = ann.list_objects(Bucket="photos", Prefix=prefix, Delimiter="/", Marker=marker, MaxKeys=limit)
        found.append((*listed(page), page["IsTruncated"], page.get("NextMarker")))
        assert (page["Marker"], page["Prefix"], page["Delimiter"], page["MaxKeys"]) == (marker, prefix, "/", limit)
        if not page["IsTruncated"]:
            return found
        marker = page["NextMarker"]


def test_folders_page_by_page(ann: Any) -> None:
    put(ann, "asdf", "boo/bar", "boo/baz/xyzzy", "cquux/thud", "cquux/bla")
    assert pages(ann, "", 1) == [
        (["asdf"], [], True, "asdf"),
        ([], ["boo/"], True, "boo/"),
        ([], ["cquux/"], False, None),
    ]
    assert pages(ann, "", 2) == [(["asdf"], ["boo/"], True, "boo/"), ([], ["cquux/"], False, None)]
    assert pages(ann, "boo/", 1) == [(["boo/bar"], [], True, "boo/bar"), ([], ["boo/baz/"], False, None)]
    assert pages(ann, "boo/", 2) == [(["boo/bar"], ["boo/baz/"], False, None)]
    put(ann, "asdf/")
    assert pages(ann, "asdf/", 1000) == [(["asdf/"], [], False, None)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("delimiter", "names", "keys", "prefixes"),
    [
        ("a", ["bar", "baz", "cab", "foo"], ["foo"], ["ba", "ca"]),
        ("%", ["b%ar", "b%az", "c%ab", "foo"], ["foo"], ["b%", "c%"]),
        (" ", ["b ar", "b az", "c ab", "foo"], ["foo"], ["b ", "c "]),
        (".", ["b.ar", "b.az", "c.ab", "foo"], ["foo"], ["b.", "c."]),
        ("\n", ["b\nar", "foo"], ["foo"], ["b\n"]),
        ("/", ["bar", "baz"], ["bar", "baz"], []),
        ("//", ["a//b", "a/b"], ["a/b"], ["a//"]),
        ("ü", ["xüy", "z"], ["z"], ["xü"]),
        ("", ["a/b", "c"], ["a/b", "c"], []),
    ],
)
def test_delimiters(
    ann: Any, version: str, delimiter: str, names: list[str], keys: list[str], prefixes: list[str]
) -> None:
    put(ann, *names)
    page = getattr(ann, version)(Bucket="photos", Delimiter=delimiter)
    assert listed(page) == (keys, prefixes)
    assert page.get("Delimiter") == (delimiter or None)


@pytest.mark.parametrize("version", VERSIONS)
def test_names_are_encoded_as_asked(ann: Any, version: str) -> None:
    put(ann, "asdf+b", "foo+1/bar", "foo/bar/xyzzy", "quux ab/thud", "ü")
    call = getattr(ann, version)
    page = call(Bucket="photos", Delimiter="/", EncodingType="url")
    assert listed(page) == (["asdf%2Bb", "%C3%BC"], ["foo%2B1/", "foo/", "quux%20ab/"])
    assert page["EncodingType"] == "url"
    refused("InvalidArgument", 400, call, Bucket="photos", EncodingType="base64")


@pytest.mark.parametrize("version", VERSIONS)
def test_prefixes(ann: Any, version: str) -> None:
    put(ann, "foo/bar", "foo/baz/x", "quux", "_bla/1", "_bla/2", "\x0ab")
    call = getattr(ann, version)
    for prefix, delimiter, expected in (
        ("foo/", "", (["foo/bar", "foo/baz/x"], [])),
        ("foo/", "/", (["foo/bar"], ["foo/baz/"])),
        ("_bla/", "", (["_bla/1", "_bla/2"], [])),
        ("qu", "z", (["quux"], [])),
        ("nothing", "/", ([], [])),
        ("\x0a", "/", (["\x0ab"], [])),
        ("foo", "", (["foo/bar", "foo/baz/x"], [])),
    ):
        page = call(Bucket="photos", Prefix=prefix, Delimiter=delimiter)
        assert listed(page) == expected
        assert page["Prefix"] == prefix
    everything: tuple[list[str], list[str]] = (["\x0ab", "_bla/1", "_bla/2", "foo/bar", "foo/baz/x", "quux"], [])
    assert listed(call(Bucket="photos", Prefix="")) == everything
    assert call(Bucket="photos")["Prefix"] == ""
    put(ann, *[f"0/{number}" for number in range(20)], "0/", "1999", "1999#", "1999+", "2000")
    assert listed(call(Bucket="photos", Prefix="", Delimiter="/", MaxKeys=5)) == (
        ["\x0ab", "1999", "1999#", "1999+"],
        ["0/"],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_limits(gateway: Gateway, ann: Any, version: str) -> None:
    put(ann, "bar", "baz", "foo", "quxx")
    call = getattr(ann, version)
    one = call(Bucket="photos", MaxKeys=1)
    assert (listed(one)[0], one["IsTruncated"], one["MaxKeys"]) == (["bar"], True, 1)
    none = call(Bucket="photos", MaxKeys=0)
    assert (listed(none)[0], none["IsTruncated"]) == ([], False)
    every = call(Bucket="photos")
    assert (len(listed(every)[0]), every["IsTruncated"], every["MaxKeys"]) == (4, False, 1000)
    assert call(Bucket="photos", MaxKeys=5000)["MaxKeys"] in (1000, 5000)
    ann.put_bucket_acl(Bucket="photos", ACL="public-read")
    for bad in ("blah", "-1", "1.5", "99999999999", "%C2%B2"):
        kind = "list-type=2&" if version.endswith("v2") else ""
        status, body, _ = gateway.raw("GET", f"/photos?{kind}max-keys={bad}")
        assert (status, b"InvalidArgument" in body) == (400, True), bad


def test_markers(ann: Any) -> None:
    put(ann, "bar", "baz", "foo", "quxx")
    for marker, keys in (
        ("", ["bar", "baz", "foo", "quxx"]),
        ("aaa", ["bar", "baz", "foo", "quxx"]),
        ("baz", ["foo", "quxx"]),
        ("blah", ["foo", "quxx"]),
        ("\x0a", ["bar", "baz", "foo", "quxx"]),
        ("zzz", []),
    ):
        page = ann.list_objects(Bucket="photos", Marker=marker)
        assert (listed(page)[0], page["Marker"], page["IsTruncated"]) == (keys, marker, False)
        page = ann.list_objects_v2(Bucket="photos", StartAfter=marker)
        assert (listed(page)[0], page["StartAfter"], page["KeyCount"]) == (keys, marker, len(keys))
    assert ann.list_objects(Bucket="photos")["Marker"] == ""
    assert "NextMarker" not in ann.list_objects(Bucket="photos", MaxKeys=1), "only with a delimiter"


def test_tokens(ann: Any) -> None:
    put(ann, "bar", "baz", "foo", "quxx")
    page = ann.list_objects_v2(Bucket="photos", ContinuationToken="")
    assert (listed(page)[0], page["ContinuationToken"], page["IsTruncated"]) == (
        ["bar", "baz", "foo", "quxx"],
        "",
        False,
    )
    first = ann.list_objects_v2(Bucket="photos", MaxKeys=1, StartAfter="bar")
    token = first["NextContinuationToken"]
    second = ann.list_objects_v2(Bucket="photos", StartAfter="bar", ContinuationToken=token)
    assert (second["ContinuationToken"], second["StartAfter"]) == (token, "bar")
    assert listed(second)[0] == ["foo", "quxx"]
    refused("InvalidArgument", 400, ann.list_objects_v2, Bucket="photos", ContinuationToken="no token")


def test_owners(ann: Any) -> None:
    put(ann, "k")
    for asked, there in (({}, False), ({"FetchOwner": False}, False), ({"FetchOwner": True}, True)):
        (row,) = ann.list_objects_v2(Bucket="photos", **asked)["Contents"]
        assert ("Owner" in row) is there
    (row,) = ann.list_objects(Bucket="photos")["Contents"]
    head = ann.head_object(Bucket="photos", Key="k")
    assert row["Owner"] == ann.get_object_acl(Bucket="photos", Key="k")["Owner"]
    assert (row["ETag"], row["Size"]) == (head["ETag"], head["ContentLength"])
    assert row["LastModified"].replace(microsecond=0) == head["LastModified"]


@pytest.mark.parametrize("version", VERSIONS)
def test_anonymous_listings(gateway: Gateway, ann: Any, version: str) -> None:
    nobody = gateway.client(None)
    put(ann, "k")
    refused("AccessDenied", 403, getattr(nobody, version), Bucket="photos")
    ann.put_bucket_acl(Bucket="photos", ACL="public-read")
    assert listed(getattr(nobody, version)(Bucket="photos"))[0] == ["k"]
    refused("NoSuchBucket", 404, getattr(nobody, version), Bucket="nothing")
    refused("NoSuchBucket", 404, getattr(ann, version), Bucket="nothing")


def test_special_keys(ann: Any) -> None:
    names = [" ", '"', "$", "%", "&", "'", "<", ">", "_", "_ ", "_ _", "__", "a\tb", "+", "a b/c d"]
    put(ann, *names)
    for version in VERSIONS:
        assert listed(getattr(ann, version)(Bucket="photos"))[0] == sorted(names)
    for name in names:
        assert ann.get_object(Bucket="photos", Key=name)["Body"].read() == name.encode()
        ann.put_object_acl(Bucket="photos", Key=name, ACL="private")


def test_buckets_by_prefix_and_page(gateway: Gateway) -> None:
    ann = gateway.client("ann")
    assert ann.list_buckets(MaxBuckets=1)["Buckets"] == []
    for name in ("alpha", "beta", "beta2"):
        ann.create_bucket(Bucket=name)
    first = ann.list_buckets(MaxBuckets=1, Prefix="beta")
    assert [row["Name"] for row in first["Buckets"]] == ["beta"]
    rest = ann.list_buckets(MaxBuckets=1, Prefix="beta", ContinuationToken=first["ContinuationToken"])
    assert ([row["Name"] for row in rest["Buckets"]], "ContinuationToken" in rest) == (["beta2"], False)
