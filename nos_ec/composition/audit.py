"""Opens the audit trail that the settings describe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from nos_ec.adapters.local.audit_files import AuditFiles, TrailLimits, TrailReader
from nos_ec.core.errors import InvalidInput
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Clock
from nos_ec.settings import Settings

KEEP_MS = 365 * 86_400_000
"""How long full files are kept if they fit into audit.size_bytes_max. They are deleted a day or two later, so that a
clock that is wrong for less than a day deletes nothing."""
_WORDS_MAX = 2
_WORD = re.compile(r"[a-z]+(-[a-z]+)*")


def open_trail(settings: Settings, clock: Clock, run: str) -> AuditTrail:
    """Return the audit trail that this process writes to. `run` is the name of the process."""
    audit, store = settings.audit, settings.store
    folder = audit.folder_in(store.root, store.backend)
    if folder is None:
        return NO_TRAIL
    return AuditFiles(folder, clock, run, TrailLimits(audit.size_bytes_max, KEEP_MS))


def trail_reader(settings: Settings) -> TrailReader:
    """Return a reader of the audit trail. Raises InvalidInput if the settings configure none."""
    folder = settings.audit.folder_in(settings.store.root, settings.store.backend)
    if folder is None:
        raise InvalidInput(
            "this process keeps no audit trail: set audit.folder, and audit.size_bytes_max above 0",
            settings=("audit.folder", "audit.size_bytes_max"),
        )
    return TrailReader(folder)


def command_of(arguments: Sequence[str]) -> str:
    """Return the program and the command of a process, without options and their values."""
    words = list(arguments[1:])
    while words and words[0].startswith("--"):  # a global option, such as --cell, and its value
        del words[: 1 if "=" in words[0] else 2]
    named = [word for word in words if _WORD.fullmatch(word)]
    return " ".join([PurePath(arguments[0]).name if arguments else "", *named[:_WORDS_MAX]])
