"""Docstrings, comments and messages use the words of the field: the commonest symptoms of another dialect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.test_tidy import PACKAGES, modules, name_of

SYMPTOMS = {
    "say what it is not: `is not a valid date`": (
        r"(?<!there )\b(is|are|was|were) no "
        r"(?!longer|more|other|one\b|less|fewer|later|greater|older|lower|newer|better)\w+"
    ),
    "name the thing": r"(^|[.;] )(that|those) of\b|\bof them that\b|(^|\. )they, |\bwhoever\b",
    "programs report, show, return or record": r"\btells? (of|what|how|which|whether|that|where|when|whose)\b",
    "say after, or name the place": r"(?<!lags )(?<!far )"
    r"\bbehind (?!the clock|a proxy|its target)(the|its?|them|all|one|an?|that)\b",
    "say next to, in addition to, or while it runs": r"\bbeside (the|its?|them|others|a|an|each|one|work)\b",
    "say this many, or name the number": r"\bso many (?!that\b|\w+ are missing that\b)",
    "say continues": r"\bgo(es)? on\b(?! (a|the|disk)\b)",
}
"""{advice: pattern}, which ignores case and line breaks."""
TEXT = re.compile(
    r"#[^\n]*|[rbf]{0,2}(?:"
    r'"{3}(?:\\.|[^\\])*?"{3}|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')',
    re.DOTALL | re.IGNORECASE,
)
"""A comment or a string. Python's `tokenize` finds the same ones in five times the time."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for each string, with its continuations on further lines, and each run of comment lines."""
    source = path.read_text()
    first = end = 0
    parts: list[str] = []
    for found in TEXT.finditer(source):
        if parts and (found[0][0] == "#") is (parts[0][0] == "#") and not source[end : found.start()].strip(" \t\n\\"):
            parts.append(found[0])
        else:
            if parts:
                yield _line(source, first), _joined(parts)
            first, parts = found.start(), [found[0]]
        end = found.end()
    if parts:
        yield _line(source, first), _joined(parts)


def _line(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def _joined(parts: list[str]) -> str:
    return re.sub(r"\s+", " ", "".join(part.strip("# \"'frb\n") + " " for part in parts)).strip()


def symptoms(text: str) -> Iterator[str]:
    for advice, pattern in SYMPTOMS.items():
        yield from (f"{found[0]!r}: {advice}" for found in re.finditer(pattern, text, re.IGNORECASE))


def test_texts_use_the_words_of_the_field() -> None:
    found = [
        f"{name_of(path)}:{line}: {symptom}"
        for path in [*modules(*PACKAGES), *modules("tests")]
        if path != Path(__file__).resolve()
        for line, text in texts(path)
        for symptom in symptoms(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "A date that is no date",
        "Those of the log.",
        "They, page by page.",
        "the headers tell what was written",
        "the bytes behind the header",
        "runs beside the store",
        "GC goes on",
        "At most so many bytes are read.",
    ],
)
def test_the_check_finds_what_it_looks_for(text: str) -> None:
    assert list(symptoms(text))


@pytest.mark.parametrize(
    "text", ["there is no such key", "is no longer open", "the limit is that of S3", "goes on disk"]
)
def test_the_check_lets_pass_what_is_usual(text: str) -> None:
    assert list(symptoms(text)) == []
