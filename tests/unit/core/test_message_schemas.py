"""The JSON Schemas of pack requests: they accept what the decoder accepts, as far as JSON Schema can say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.formats.messages import decode_pack_request
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX
from nos_ec.core.schemas import PACK_REQUEST_VERSIONS, pack_request_schema

DOCS = Path(__file__).parents[3] / "docs"
VALIDATORS = [jsonschema_rs.Draft202012Validator(pack_request_schema(version)) for version in PACK_REQUEST_VERSIONS]

NUMBERS = st.one_of(
    st.integers(-1, 3), st.sampled_from([2**32 - 1, 2**32, 2**63 - 1, 2**63]), st.integers(0, 2**64), st.just(1.5)
)
SPELT = st.text(st.sampled_from("./a\0\n\\é\U0001f600"), max_size=7)
TEXTS = st.one_of(
    SPELT,
    st.text(max_size=20),
    st.sampled_from(
        ["a" * 255, "a" * 256, "é" * 127, "é" * 128, "a" * 1024, "a" * 1025, ".\n", "..\n", "\n..", "a/..\n"]
    ),
)
HEX = st.one_of(
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.sampled_from(["0" * 31, "0" * 32 + "\n", "A" * 32, "\u0660" * 32]),
)
ANYTHING = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.lists(st.integers(), max_size=2))
VALID: dict[str, st.SearchStrategy[Any]] = {
    "v": st.sampled_from([1, 2, 3]),
    "object_id": st.integers(1, 2**63 - 1),
    "bucket": st.text("abc", min_size=1, max_size=9),
    "name": st.text("abc/", min_size=1, max_size=9),
    "version": st.integers(1, 2**63 - 1),
    "size": st.integers(1, 2**32 - 1),
    "crc32c": st.integers(0, 2**32 - 1),
    "landing_id": st.binary(min_size=16, max_size=16).map(bytes.hex),
    "store": st.binary(min_size=16, max_size=16).map(bytes.hex),
}
V2_FIELDS = ("v", "bucket", "name", "version")
SPECIAL = {"bucket": TEXTS, "name": TEXTS, "landing_id": HEX, "store": HEX, "v": st.integers(0, 4)}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid pack request of one of the versions, with no, one or two things changed."""
    version = draw(st.sampled_from(PACK_REQUEST_VERSIONS))
    fields = list(V2_FIELDS) if version == 2 else [field for field in VALID if version == 3 or field != "store"]
    document = {field: draw(VALID[field]) for field in fields} | {"v": version}
    for field in draw(st.lists(st.sampled_from(fields), max_size=2)):
        change = draw(st.sampled_from(["near", "any", "without", "more"]))
        if change == "near":
            document[field] = draw(SPECIAL.get(field, NUMBERS))
        elif change == "any":
            document[field] = draw(ANYTHING)
        elif change == "without":
            document.pop(field, None)
        else:
            document[draw(st.sampled_from(["more", *VALID]))] = draw(ANYTHING)
    return document


def beyond_json_schema(document: dict[str, Any]) -> bool:
    """Whether the decoder refuses this for what JSON Schema cannot say: it counts characters, not bytes."""
    limits = {"bucket": BUCKET_BYTES_MAX, "name": NAME_BYTES_MAX}
    return any(len(document[field].encode()) > bytes_max for field, bytes_max in limits.items())


@given(documents())
@example({"v": 2, "bucket": "b", "name": "a/..\n", "version": 1})
@example({"v": 2, "bucket": "é" * 128, "name": "n", "version": 1})
@example({"v": 2, "bucket": ".", "name": "n", "version": 1})
@example({"v": 2, "bucket": "b", "name": "../n", "version": 1})
@example({"v": 2, "bucket": "b", "name": "n", "version": True})
def test_the_schema_accepts_what_the_decoder_accepts(document: dict[str, Any]) -> None:
    by_schema = [validator.is_valid(document) for validator in VALIDATORS]
    assert sum(by_schema) <= 1, "a document of two versions"
    try:
        decode_pack_request(json.dumps(document).encode())
    except Corrupt:
        assert not any(by_schema) or beyond_json_schema(document)
    else:
        assert by_schema[document["v"] - 1]


EDGES = [-1, 0, 1, 2, 3, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64]


@pytest.mark.parametrize("version", PACK_REQUEST_VERSIONS)
def test_both_draw_the_same_line_at_every_edge(version: int) -> None:
    text = re.findall(r"```json\n(.*?)```", (DOCS / "MESSAGES.md").read_text(), re.DOTALL)[version - 1]
    valid = json.loads(text)
    for field in (field for field, value in valid.items() if isinstance(value, int)):
        accepted = []
        for number in EDGES:
            document = {**valid, field: number}
            by_schema = any(validator.is_valid(document) for validator in VALIDATORS)
            try:
                decode_pack_request(json.dumps(document).encode())
            except Corrupt:
                assert not by_schema, (field, number)
            else:
                assert by_schema, (field, number)
                accepted.append(number)
        assert 1 <= len(accepted) < len(EDGES), field


@pytest.mark.parametrize("text", ["5.0", "5e0"])
def test_the_decoder_wants_integers_without_a_fraction(text: str) -> None:
    """The other thing that JSON Schema cannot say, because 5.0 is an integer to it. MESSAGES.md says it."""
    document = f'{{"v":2,"bucket":"b","name":"n","version":{text}}}'
    assert VALIDATORS[1].is_valid(json.loads(document))
    with pytest.raises(Corrupt, match="got `float`"):
        decode_pack_request(document.encode())


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(Corrupt, match="surrogate"):
        decode_pack_request(b'{"v":2,"bucket":"b","name":"\\ud800","version":1}')


def test_a_schema_is_a_schema_and_describes_every_field() -> None:
    for version in PACK_REQUEST_VERSIONS:
        schema = pack_request_schema(version)
        jsonschema_rs.meta.validate(schema)
        assert schema["required"] == list(schema["properties"])
        assert all("description" in field for field in schema["properties"].values())
    with pytest.raises(InvalidInput, match="no version 4"):
        pack_request_schema(4)


def test_the_examples_of_the_docs_are_valid() -> None:
    examples = re.findall(r"```json\n(.*?)```", (DOCS / "MESSAGES.md").read_text(), re.DOTALL)
    found = [json.loads(text) for text in examples]
    assert [document["v"] for document in found] == list(PACK_REQUEST_VERSIONS)
    for text, document in zip(examples, found, strict=True):
        assert VALIDATORS[document["v"] - 1].is_valid(document)
        decode_pack_request(text.encode())


def test_the_docs_describe_the_fields_of_each_version() -> None:
    text = (DOCS / "MESSAGES.md").read_text()
    for version in PACK_REQUEST_VERSIONS:
        (section,) = re.findall(rf"^## Version {version}\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
        fields = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        assert fields == list(pack_request_schema(version)["properties"])
