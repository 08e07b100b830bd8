"""Finds the programs that a test or a script starts, as far as its text shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

BUILTINS = frozenset(
    re.findall(
        r"\S+",
        """. : [ [[ alias bg break builtin case cd command compgen continue declare do done echo elif else esac eval
        exec exit export false fg fi for function getopts hash if in jobs kill let local mapfile popd printf pushd pwd
        read readonly return select set shift shopt source test then time times trap true type ulimit umask unset
        until wait while""",
    )
)
"""Words that bash itself understands."""
STARTING = frozenset(f"subprocess.{name}" for name in ("run", "Popen", "check_output", "check_call", "call"))
SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh"})

_HEREDOC = re.compile(r"<<-?(['\"]?)(\w+)\1([^\n]*)\n.*?^\t*\2$", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"""\\\n|\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?:^|(?<=\s))\#[^\n]*""", re.DOTALL | re.MULTILINE)
_SUBSTITUTION = re.compile(r"\$\([^()\"]*\)?")
_VARIABLE = re.compile(r"\$\{[^{}]*\}|\{\w+\}(?=[<>])")
_ARITHMETIC = re.compile(r"\(\(.*?\)\)", re.DOTALL)
_ARRAY = re.compile(r"=\([^()]*\)")
_PATTERN = r"[^\s()$;&|<>]+"
_CASE = re.compile(rf"(?:^|\bin\b|;;)[ \t]*{_PATTERN}(?:[ \t]*\|[ \t]*{_PATTERN})*\)", re.MULTILINE)
_REDIRECTION = re.compile(r"\d?[<>]&?[ \t]*(?![<>(])\S+|\d?>&-")
_FUNCTION = re.compile(r"(?:^|(?<=[;\s]))([\w-]+)\(\)")
_SEPARATOR = re.compile(r"\$\(|[;&|\n()`{}]")
_ASSIGNMENT = re.compile(r"\w+\+?=\S*")
_BEFORE_COMMAND = frozenset(["!", "if", "then", "elif", "else", "while", "until", "do", "exec", "env", "nohup"])


def functions_of(shell: str) -> set[str]:
    """The functions that a script defines."""
    return set(_FUNCTION.findall(_without_quotes(shell)))


def started_by_shell(shell: str) -> set[str]:
    """The plain words in the place of a command, except what bash itself understands, and functions of this text.
    Commands inside of variables, arrays and here-documents are not found."""
    text = _without_quotes(shell)
    for pattern, instead in ((_VARIABLE, "%"), (_ARITHMETIC, " "), (_ARRAY, "=%"), (_CASE, ";"), (_REDIRECTION, " ")):
        text = pattern.sub(instead, text)
    own = functions_of(shell)
    found = set()
    for command in _SEPARATOR.split(_FUNCTION.sub("", text)):
        words = iter(command.split())
        first = next((word for word in words if word not in _BEFORE_COMMAND and not _ASSIGNMENT.fullmatch(word)), "")
        if re.fullmatch(r"[a-zA-Z][\w.+-]*", first):
            found.add(first)
    return found - BUILTINS - own


def _without_quotes(shell: str) -> str:
    """Return the script without comments, here-documents and quoted text, except for commands whose output becomes part
    of a text."""

    def replaced(match: re.Match[str]) -> str:
        text = match[0]
        if text == "\\\n":
            return " "
        if text[0] == "#":
            return ""
        return "%" + "".join(inner for inner in _SUBSTITUTION.findall(text) if text[0] == '"')

    return _QUOTED.sub(replaced, _HEREDOC.sub(r"\3", shell))


def started_by_python(source: str) -> Iterator[tuple[int, str]]:
    """(line, program) of the calls of `subprocess` with a literal program, also of a list that has a name, and of the
    programs in the text of `bash -c`."""
    if not any(call in source for call in STARTING):
        return
    tree = ast.parse(source)
    named: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                named.setdefault(ast.unparse(target), []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in STARTING and node.args:
            for command in _meant(node.args[0], named):
                yield from _programs(command, named)


def _meant(node: ast.expr, named: dict[str, list[ast.expr]]) -> list[ast.expr]:
    """Return the values that an expression may have: itself, or the values assigned to a variable of this name."""
    if isinstance(node, ast.Starred):
        node = node.value
    return named.get(node.id, []) if isinstance(node, ast.Name) else [node]


def _programs(command: ast.expr, named: dict[str, list[ast.expr]]) -> Iterator[tuple[int, str]]:
    if isinstance(command, ast.BinOp):
        command = command.left
    if not isinstance(command, ast.List | ast.Tuple) or not command.elts:
        return
    first, *arguments = command.elts
    if isinstance(first, ast.Starred):
        for value in _meant(first, named):
            yield from _programs(value, named)
    if not isinstance(first, ast.Constant):
        return
    yield command.lineno, str(first.value)
    for flag, argument in pairwise(arguments):
        if first.value in SHELLS and isinstance(flag, ast.Constant) and flag.value == "-c":
            for text in _meant(argument, named):
                yield from ((command.lineno, program) for program in started_by_shell(_literal(text)))


def _literal(text: ast.expr) -> str:
    """A string, with `%` where a value is put in."""
    if isinstance(text, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "%" for part in text.values)
    if isinstance(text, ast.BinOp):
        return _literal(text.left) + _literal(text.right)
    return str(text.value) if isinstance(text, ast.Constant) else "%"
