"""Texts of a policy with wildcards and variables.

`*` matches any text, `?` one character. `${KEY}` stands for the value of a condition key in the request, in which `*`
and `?` have no meaning; `${KEY, 'TEXT'}` has a default. `${*}`, `${?}` and `${$}` are the characters themselves.
Source: "IAM policy elements: Variables and tags" of the IAM user guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nos_ec.s3.conditions.keys import Facts, NamedKey, Unsure, find_key

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_WITH_DEFAULT = re.compile(r"\s*([^,\s]+)\s*(?:,\s*'([^']*)'\s*)?")
VALUE_CHARS_MAX = 256
"""Maximum length of the value of a variable, because matching takes the length of the value times that of the text."""
_END = "\0"
"""Ends the value of a variable in the text that a pattern is matched with, so no value may contain it."""


class BadVariable(Exception):
    """A variable of a policy cannot be used. The message says why."""


class Settled(Exception):
    """A variable without a value settles whether a statement matches. `matches` is None if that depends on what is
    not known yet."""

    def __init__(self, matches: bool | None) -> None:
        super().__init__()
        self.matches = matches


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a statement for a request. `action` is in lower case; `allows` is the effect of the
    statement."""

    action: str
    facts: Facts
    allows: bool

    def values(self, named: NamedKey) -> tuple[str, ...]:
        """Return the values of a key; empty if it is missing. Raises Settled."""
        found = self.facts.values(named) if named.key.fits(self.action) else ()
        if isinstance(found, tuple):
            return found
        if found is Unsure.LATER:
            raise Settled(None)
        raise Settled(self.allows is (found is Unsure.EARLIER))


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text in which wildcards have no meaning."""

    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable. `default` replaces a missing value."""

    named: NamedKey
    default: str | None

    def value(self, evaluation: Evaluation) -> str:
        """Return the value. Raises Settled if there is none, or none that can be used: then an Allow does not match,
        and a Deny does."""
        found = evaluation.values(self.named)
        text = found[0] if found else self.default
        if text is None or len(text) > VALUE_CHARS_MAX or _END in text:
            raise Settled(not evaluation.allows)
        return text


Pieces = Sequence[str | Verbatim | Variable]


def pieces_of(text: str, *, has_variables: bool) -> Pieces:
    """Parse a text of a policy. `has_variables`: the version of the policy knows variables. Raises BadVariable."""
    if "${" not in text:
        return [text]
    if not has_variables:
        raise BadVariable("variables need the Version 2012-10-17")
    found: list[str | Verbatim | Variable] = []
    for number, piece in enumerate(_VARIABLE.split(text)):
        if number % 2:
            found.append(_variable(piece))
        elif "${" in piece:
            raise BadVariable("a variable does not end with }")
        elif piece:
            found.append(piece)
    return found


def _variable(inside: str) -> Verbatim | Variable:
    if inside in ("*", "?", "$"):
        return Verbatim(inside)
    match = _WITH_DEFAULT.fullmatch(inside)
    named = None if match is None else find_key(match[1])
    if match is None or named is None:
        raise BadVariable(f"there is no variable {inside[:100]}")
    if named.key.is_list:
        raise BadVariable(f"{named.key.name} may have several values, so it cannot be a variable")
    return Variable(named, match[2])


def variables_of(pieces: Pieces) -> list[Variable]:
    """Return the variables of a text."""
    return [piece for piece in pieces if isinstance(piece, Variable)]


def fixed_text(pieces: Pieces) -> str | None:
    """Return a text without variables; None if it has some."""
    found = []
    for piece in pieces:
        if isinstance(piece, Variable):
            return None
        found.append(piece if isinstance(piece, str) else piece.text)
    return "".join(found)


def filled(pieces: Pieces, evaluation: Evaluation) -> str:
    """Return a text without wildcards, with the values of its variables. Raises Settled."""
    return "".join(
        piece if isinstance(piece, str) else piece.text if isinstance(piece, Verbatim) else piece.value(evaluation)
        for piece in pieces
    )


def split(pieces: Pieces, separator: str, times: int) -> list[list[str | Verbatim | Variable]]:
    """Split a text at the first `times` separators outside variables."""
    found: list[list[str | Verbatim | Variable]] = [[]]
    for piece in pieces:
        if not isinstance(piece, str):
            found[-1].append(piece)
            continue
        first, *rest = piece.split(separator, times + 1 - len(found))
        found[-1].append(first)
        found += [[one] for one in rest]
    return found


class Patterns:
    """Alternatives with wildcards. Matching takes at most the length of the patterns times that of the text."""

    def __init__(self, alternatives: Iterable[Pieces]) -> None:
        fixed: dict[str, None] = {}
        self._with_variables: list[tuple[list[Variable], re.Pattern[str]]] = []
        for pieces in alternatives:
            variables = variables_of(pieces)
            if not variables:
                fixed[_regex(pieces)] = None
                continue
            # A reference to a group compares with the value as it is, so nothing is compiled for a request.
            values = "".join(f"(?P<v{number}>[^{_END}]*+){_END}" for number in range(len(variables)))
            self._with_variables.append((variables, re.compile(values + _regex(pieces), re.DOTALL)))
        self._fixed = re.compile("|".join(f"(?:{one})" for one in fixed), re.DOTALL) if fixed else None

    def match(self, text: str, evaluation: Evaluation) -> bool:
        """Return whether an alternative matches the text. Raises Settled."""
        values = {one: one.value(evaluation) for variables, _ in self._with_variables for one in variables}
        if self._fixed is not None and self._fixed.fullmatch(text) is not None:
            return True
        return any(
            pattern.fullmatch("".join(values[one] + _END for one in variables) + text) is not None
            for variables, pattern in self._with_variables
        )


def wildcards(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern without variables. Use its `fullmatch`."""
    return re.compile(_regex([pattern]), re.DOTALL)


def _regex(pieces: Pieces) -> str:
    """Translate a pattern. Text between two stars is matched at its first place only, without backtracking. So matching
    takes at most the length of the pattern times that of the text."""
    sections, variables = [""], 0
    for piece in pieces:
        if isinstance(piece, str):
            first, *rest = [_literal(part) for part in re.split(r"\*+", piece)]
            sections[-1] += first
            sections += rest
        elif isinstance(piece, Verbatim):
            sections[-1] += re.escape(piece.text)
        else:
            sections[-1] += f"(?P=v{variables})"
            variables += 1
    if len(sections) == 1:
        return sections[0]
    first, *middle, last = sections
    return first + "".join(f"(?>.*?{text})" for text in middle if text) + f".*{last}"


def _literal(text: str) -> str:
    return "".join("." if char == "?" else re.escape(char) for char in text)
