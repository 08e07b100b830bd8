"""The XML of request bodies. Bytes, depth and elements are bounded. A DOCTYPE is refused, so there are no entities.
Unknown and repeated elements are refused, never ignored.

Sources: the request syntax of DeleteObjects, CompleteMultipartUpload, PutObjectTagging, CreateBucket and PutBucketAcl
in the S3 API reference; "Object tagging" of the S3 user guide for the limits of tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl
from xml.parsers import expat

from nos_ec.s3.answers import Grant, Owner
from nos_ec.s3.checksums import Algorithm, decoded
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.names import check_key, check_version_id
from nos_ec.s3.request import is_encoded

DOCUMENT_SIZE_MAX = 2 << 20
DEPTH_MAX = 16
NAMESPACE_LENGTH_MAX = 100
"""Bounded because the parser repeats the namespace in the name of each element."""
ATTRIBUTES_MAX = 10
"""Attributes of one element."""
ELEMENTS_MAX = 100_000
"""10,000 parts with number, ETag and checksum have 40,001 elements."""
DELETED_KEYS_MAX = 1000
PARTS_MAX = 10_000
AES256, KMS = "AES256", "aws:kms"
"""The name of encryption with keys of the store."""
OBJECT_TAGS_MAX = 10
TAG_KEY_LENGTH_MAX = 128
TAG_VALUE_LENGTH_MAX = 256
GRANTS_MAX = 100
PERMISSIONS = frozenset(["FULL_CONTROL", "READ", "WRITE", "READ_ACP", "WRITE_ACP"])
_XSI_TYPE = "http://www.w3.org/2001/XMLSchema-instance}type"


@dataclass(slots=True)
class Element:
    """An XML element. `name` has no namespace."""

    name: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""


@dataclass(frozen=True, slots=True)
class ToDelete:
    """An object of DeleteObjects. `etag`, `modified` and `size` are its conditions as sent, or None."""

    key: str
    version_id: str | None = None
    etag: str | None = None
    modified: str | None = None
    size: str | None = None


@dataclass(frozen=True, slots=True)
class CompletedPart:
    """A part of CompleteMultipartUpload. `etag` has no quotes."""

    number: int
    etag: str
    checksum: tuple[Algorithm, bytes] | None = None


def parse(body: bytes, root: str) -> Element:
    """Parse a document whose root must have this name. Raises MalformedXML, or MaxMessageLengthExceeded."""
    if len(body) > DOCUMENT_SIZE_MAX:
        raise S3Error("MaxMessageLengthExceeded", f"The document has more than {DOCUMENT_SIZE_MAX} bytes.")
    reader = _Reader()
    parser = expat.ParserCreate("utf-8", "}")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.data
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.StartNamespaceDeclHandler = reader.namespace
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError) as error:
        raise malformed(f"The XML is not well-formed: {error}.") from None
    found = reader.top.children[0]
    if found.name != root:
        raise malformed(f"The document is {found.name!r}; expecting {root}.")
    return found


def malformed(reason: str) -> S3Error:
    """Return the error of a malformed document."""
    return S3Error("MalformedXML", f"{reason} It must follow the schema of S3.")


def unique_children(element: Element, *names: str) -> dict[str, Element]:
    """Return the children of an element by name. Raises MalformedXML for other or repeated names."""
    found: dict[str, Element] = {}
    for child in element.children:
        if child.name not in names or child.name in found:
            raise malformed(f"{child.name!r} in {element.name!r} is unknown or repeated.")
        found[child.name] = child
    return found


def only_children(element: Element, *names: str) -> dict[str, Element]:
    """Return the children like `unique_children`. Raises MalformedXML also for an element with text."""
    if element.text.strip():
        raise malformed(f"{element.name!r} must not contain text.")
    return unique_children(element, *names)


class _Reader:
    def __init__(self) -> None:
        self.top = Element("", {})
        self._open = [self.top]
        self._elements = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if len(self._open) > DEPTH_MAX or self._elements > ELEMENTS_MAX or len(attributes) > ATTRIBUTES_MAX:
            raise malformed("The document is too deep, or has too many elements or attributes.")
        element = Element(name.rpartition("}")[2], attributes)
        parent = self._open[-1]
        if parent.text and parent.text.strip():
            raise _mixed(parent)
        parent.text = ""
        parent.children.append(element)
        self._open.append(element)

    def end(self, _: str) -> None:
        self._open.pop()

    def data(self, text: str) -> None:
        element = self._open[-1]
        # Only whitespace is allowed between elements.
        if not element.children:
            element.text += text
        elif text.strip():
            raise _mixed(element)

    def namespace(self, _: str | None, uri: str | None) -> None:
        if len(uri or "") > NAMESPACE_LENGTH_MAX:
            raise malformed("The name of a namespace is too long.")

    def doctype(self, *_: object) -> None:
        raise malformed("A DOCTYPE is not allowed.")


def _mixed(element: Element) -> S3Error:
    return malformed(f"{element.name!r} has text among its elements.")


def _fields(element: Element, *names: str) -> dict[str, str]:
    """Return the texts of its children. Each must have one of these names, be there only once, and have no children."""
    found: dict[str, str] = {}
    if element.text.strip():
        raise _mixed(element)
    for child in element.children:
        if child.name not in names or child.name in found or child.children:
            raise malformed(f"{child.name!r} in {element.name!r} is unknown, repeated, or has elements.")
        found[child.name] = child.text
    return found


def _only(element: Element, *names: str) -> Iterator[Element]:
    if element.text.strip():
        raise _mixed(element)
    for child in element.children:
        if child.name not in names:
            raise malformed(f"{child.name!r} in {element.name!r} is unknown.")
        yield child


def delete_objects(body: bytes) -> tuple[list[ToDelete], bool]:
    """Parse the body of DeleteObjects. Returns the objects, and whether the answer should be quiet. Raises
    MalformedXML, KeyTooLongError, InvalidArgument."""
    quiet: bool | None = None
    found = []
    for child in _only(parse(body, "Delete"), "Object", "Quiet"):
        if child.name == "Quiet":
            if quiet is not None or child.children:
                raise malformed("Quiet is repeated, or has elements.")
            quiet = child.text.strip().lower() == "true"
            continue
        fields = _fields(child, "Key", "VersionId", "ETag", "LastModifiedTime", "Size")
        if not fields.get("Key"):
            raise malformed("An Object has no Key.")
        check_key(fields["Key"])
        check_version_id(fields.get("VersionId"))
        found.append(
            ToDelete(
                fields["Key"],
                fields.get("VersionId"),
                fields.get("ETag"),
                fields.get("LastModifiedTime"),
                fields.get("Size"),
            )
        )
    if not 1 <= len(found) <= DELETED_KEYS_MAX:
        raise malformed(f"{len(found)} keys to delete; 1 to {DELETED_KEYS_MAX} are allowed.")
    return found, bool(quiet)


def complete_upload(body: bytes) -> list[CompletedPart]:
    """Parse the body of CompleteMultipartUpload. Raises MalformedXML, InvalidPart, InvalidPartOrder, InvalidRequest for
    a bad checksum, NotImplemented for an unsupported checksum algorithm."""
    names = {f"Checksum{algorithm.value}": algorithm for algorithm in Algorithm}
    found: list[CompletedPart] = []
    for part in _only(parse(body, "CompleteMultipartUpload"), "Part"):
        for child in part.children:
            if child.name.startswith("Checksum") and child.name not in names:
                raise S3Error("NotImplemented", f"{child.name} is not supported.")
        fields = _fields(part, "PartNumber", "ETag", *names)
        number = fields.get("PartNumber", "").strip()
        if not re.fullmatch("-?[0-9]{1,10}", number) or "ETag" not in fields:
            raise malformed("A Part needs a PartNumber and an ETag.")
        if not 1 <= int(number) <= PARTS_MAX:
            raise invalid_argument(f"Part number must be 1 to {PARTS_MAX}.", "PartNumber")
        checksums = [(names[name], text) for name, text in fields.items() if name in names]
        if len(checksums) > 1:
            raise malformed("A Part has several checksums.")
        checksum = None
        if checksums:
            algorithm, text = checksums[0]
            value = decoded(text.strip(), algorithm.size)
            if value is None:
                raise S3Error("InvalidRequest", f"The {algorithm.value} of part {number} is not valid.")
            checksum = (algorithm, value)
        if found and int(number) < found[-1].number:
            raise S3Error("InvalidPartOrder", "The parts must be listed in ascending order of their numbers.")
        if found and int(number) == found[-1].number:
            found.pop()  # a client that sent a part again may list both; the last one counts, as in radosgw
        found.append(CompletedPart(int(number), fields["ETag"].strip().strip('"'), checksum))
    if not found:
        raise malformed("No parts are listed.")
    return found


def tagging(body: bytes, tags_max: int = OBJECT_TAGS_MAX) -> dict[str, str]:
    """Parse the body of PutObjectTagging or PutBucketTagging. Raises MalformedXML or InvalidTag."""
    sets = list(_only(parse(body, "Tagging"), "TagSet"))
    if len(sets) != 1:
        raise malformed("A Tagging has one TagSet.")
    return _tag_set(sets[0], tags_max)


def _tag_set(tags: Element, tags_max: int) -> dict[str, str]:
    pairs = []
    for tag in _only(tags, "Tag"):
        fields = _fields(tag, "Key", "Value")
        if fields.keys() != {"Key", "Value"}:
            raise malformed("A Tag has a Key and a Value.")
        pairs.append((fields["Key"], fields["Value"]))
    return _tags(pairs, tags_max)


def tagging_header(text: str) -> dict[str, str]:
    """Parse the header `x-amz-tagging`, which has the form of a query. Raises InvalidArgument or InvalidTag."""
    try:
        pairs = (
            parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100) if is_encoded(text) else None
        )
    except ValueError:
        pairs = None
    if pairs is None or len(dict(pairs)) != len(pairs):
        raise invalid_argument(
            "The header x-amz-tagging must be tags as of a query, encoded as UTF-8, without a tag name twice.",
            "x-amz-tagging",
        )
    return _tags(pairs, OBJECT_TAGS_MAX)


def _tags(pairs: list[tuple[str, str]], tags_max: int) -> dict[str, str]:
    tags = dict(pairs)
    if len(tags) != len(pairs):
        raise S3Error("InvalidTag", "Cannot provide multiple tags with the same key.")
    if len(tags) > tags_max:
        raise S3Error("InvalidTag", f"{len(tags)} tags; at most {tags_max} are allowed.")
    for key, value in pairs:
        if not 1 <= len(key) <= TAG_KEY_LENGTH_MAX or key.startswith("aws:"):
            raise S3Error("InvalidTag", "The key of a tag has 1 to 128 characters, and does not begin with aws:.")
        if len(value) > TAG_VALUE_LENGTH_MAX:
            raise S3Error("InvalidTag", f"The value of a tag has at most {TAG_VALUE_LENGTH_MAX} characters.")
    return tags


def versioning(body: bytes) -> str:
    """Parse the body of PutBucketVersioning: Enabled or Suspended. Raises MalformedXML,
    IllegalVersioningConfigurationException, or NotImplemented for MFA delete."""
    fields = _fields(parse(body, "VersioningConfiguration"), "Status", "MfaDelete")
    mfa = fields.get("MfaDelete", "Disabled").strip()
    if mfa == "Enabled":
        raise S3Error("NotImplemented", "MFA delete is not supported; leave MfaDelete out, or set it to Disabled.")
    if mfa != "Disabled":
        raise malformed("MfaDelete is Enabled or Disabled.")
    status = fields.get("Status")
    if status is None:
        raise S3Error(
            "IllegalVersioningConfigurationException",
            "The versioning configuration specified in the request is invalid: it has no Status.",
        )
    if status.strip() not in ("Enabled", "Suspended"):
        raise malformed("Status is Enabled or Suspended.")
    return status.strip()


def with_kms_key(name: str | None) -> str:
    """Return the method of encryption with a KMS key of this name, or with any one for None."""
    return f"{KMS} {name}" if name else KMS


def kms_key_of(method: str) -> str | None:
    """Return the name of the KMS key in a method of encryption; empty if it names none, None for another method."""
    algorithm, _, name = method.partition(" ")
    return name if algorithm == KMS else None


def encryption(body: bytes) -> str:
    """Parse the body of PutBucketEncryption. Returns the method: AES256, or KMS with the name of a KMS key if there is
    one (`with_kms_key`). Raises MalformedXML, or NotImplemented for other methods. BucketKeyEnabled changes nothing,
    because objects never have keys of the key service itself."""
    document = parse(body, "ServerSideEncryptionConfiguration")
    if len(document.children) != 1 or document.children[0].name != "Rule":
        raise malformed("The configuration has exactly one Rule.")
    found: list[Element] = []
    for child in document.children[0].children:
        if child.name == "ApplyServerSideEncryptionByDefault":
            found.append(child)
        elif child.name != "BucketKeyEnabled" or child.text.strip() not in ("true", "false"):
            raise S3Error("NotImplemented", f"{child.name!r} with this value is not supported in a Rule.")
    if len(found) != 1:
        raise malformed("A Rule has exactly one ApplyServerSideEncryptionByDefault.")
    fields = _fields(found[0], "SSEAlgorithm", "KMSMasterKeyID")
    algorithm = fields.get("SSEAlgorithm", "").strip()
    if algorithm == KMS:
        return with_kms_key(fields.get("KMSMasterKeyID", "").strip())
    if algorithm.startswith(KMS):
        raise S3Error("NotImplemented", f"The algorithm {algorithm} is not supported; use {KMS} or {AES256}.")
    if algorithm != AES256:
        raise malformed(f"SSEAlgorithm must be {AES256} or {KMS}.")
    if "KMSMasterKeyID" in fields:
        raise invalid_argument(f"A KMSMasterKeyID is not applicable to {AES256}.", "KMSMasterKeyID")
    return algorithm


def create_bucket(body: bytes, tags_max: int) -> tuple[str | None, dict[str, str]]:
    """Parse the body of CreateBucket. Returns the location constraint and the tags. Raises MalformedXML, InvalidTag, or
    NotImplemented for directory buckets."""
    if not body.strip():
        return None, {}
    found: dict[str, Element] = {}
    for child in _only(parse(body, "CreateBucketConfiguration"), "LocationConstraint", "Tags", "Location", "Bucket"):
        if child.name in ("Location", "Bucket"):
            raise S3Error("NotImplemented", f"{child.name} cannot be set when a bucket is created.")
        if child.name in found or (child.children and child.name != "Tags"):
            raise malformed(f"{child.name} is repeated, or has elements.")
        found[child.name] = child
    location = found["LocationConstraint"].text.strip() if "LocationConstraint" in found else ""
    return location or None, _tag_set(found["Tags"], tags_max) if "Tags" in found else {}


def unknown_mail_address() -> S3Error:
    """Return the error for a grantee named by mail address, since accounts have none."""
    return S3Error("UnresolvableGrantByEmailAddress", "No account of this store has a mail address; name its id.")


def access_control(body: bytes) -> tuple[Owner, list[Grant]]:
    """Parse the body of PutBucketAcl or PutObjectAcl. Returns the owner and the grants. Raises MalformedACLError,
    MalformedXML, or `unknown_mail_address` for a grantee named by mail address."""
    owner = None
    grants: list[Grant] | None = None
    for child in _only(parse(body, "AccessControlPolicy"), "Owner", "AccessControlList"):
        if child.name == "Owner" and owner is None:
            owner = _owner(child)
        elif child.name == "AccessControlList" and grants is None:
            grants = [_grant(grant) for grant in _only(child, "Grant")]
        else:
            raise S3Error("MalformedACLError", f"{child.name} is repeated.")
    grants = grants or []
    if owner is None or len(grants) > GRANTS_MAX:
        raise S3Error("MalformedACLError", f"An ACL has an Owner, and at most {GRANTS_MAX} grants.")
    return owner, grants


def _owner(element: Element) -> Owner:
    fields = _fields(element, "ID", "DisplayName")
    if not fields.get("ID"):
        raise S3Error("MalformedACLError", f"{element.name} has no ID.")
    return Owner(fields["ID"], fields.get("DisplayName", ""))


def _grant(element: Element) -> Grant:
    grantees = [child for child in element.children if child.name == "Grantee"]
    permissions = [child.text.strip() for child in element.children if child.name == "Permission"]
    if len(grantees) != 1 or len(permissions) != 1 or len(element.children) != 2 or permissions[0] not in PERMISSIONS:
        raise S3Error("MalformedACLError", "A Grant has a Grantee and a Permission.")
    grantee = grantees[0]
    kind = grantee.attributes.get(_XSI_TYPE)
    if kind == "CanonicalUser":
        return Grant(permissions[0], owner=_owner(grantee))
    if kind == "Group":
        uri = _fields(grantee, "URI").get("URI", "").strip()
        if uri:
            return Grant(permissions[0], uri=uri)
    if kind == "AmazonCustomerByEmail":
        raise unknown_mail_address()
    raise S3Error("MalformedACLError", "The type of a Grantee is unknown.")
