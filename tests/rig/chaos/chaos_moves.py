"""The operator of a chaos run of several cells: buckets are moved from cell to cell all the time (docs/CELLS.md).

The commands are processes of the fleet, one after another, and are killed and stopped like its daemons. A command that
did not succeed is repeated, as CELLS.md says, or the move is given up.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

from nos_ec.cli.terminal.signals import EXIT_INTERRUPTED, EXIT_TERMINATED
from nos_ec.settings import without_settings
from tests.rig.chaos.chaos_fleet import CODES, UNREACHED

ACTOR = "mover-0"
"""The name of the operator in a fleet."""
RATE = "2MiB"
"""How many bytes a command copies in a second, so that the copies of a bucket take some seconds."""
GIVE_UP_SHARE = 0.25
"""How often a move that was interrupted is given up instead."""

Command = tuple[str, ...]

_REFUSED, _CONFLICT = 2, 5
_FOR_DEAD = "it took this process for dead"
"""What a move says that has begun again so often that it ends."""
_ENDED = CODES | {UNREACHED, EXIT_INTERRUPTED, EXIT_TERMINATED}
"""How any command may end."""


def commands_of_round(bucket: str, here: str, there: str, *more: str) -> list[Command]:
    """Return the commands of an operator that move a bucket to another cell, with these further arguments, and then let
    it come back some time."""
    return [
        ("cells", "move", bucket, "--to", there, *more),
        ("--cell", there, "metadata", "dump"),
        ("cells", "purge", bucket, "--from", here),
        ("--cell", here, "metadata", "dump"),
    ]


def incomplete(config: Path) -> list[str]:
    """Return what `nos-ec cells moves` lists, or how it failed: nothing after the last round."""
    command = [sys.executable, "-m", "nos_ec", "--config", str(config), "cells", "moves", "--json"]
    found = subprocess.run(command, env=without_settings(os.environ), capture_output=True, text=True, check=False)
    if found.returncode:
        return [f"cells moves ended with exit code {found.returncode}: {found.stderr[-1000:]}"]
    return [f"cells moves lists {row}" for row in json.loads(found.stdout)["moves"]]


class Moves:
    """Moves one bucket after the other to a cell by chance, until `finish`: see chaos_fleet.Errands. Belongs to one
    thread."""

    def __init__(
        self,
        homes: Mapping[str, str],
        cells: Sequence[str],
        seed: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`homes` has the cells of the buckets that are to be moved."""
        self._now_s = now_s
        self._began_s = self._strike_s = self._move_s = 0.0
        """When the command began, when it is to be struck, and how long the last move took that was completed."""
        self.homes = dict(homes)
        self.counts: Counter[str] = Counter()
        """Moves that were completed, interrupted and given up."""
        self.problems: list[str] = []
        self._cells = cells
        self._random = random.Random(f"{seed}/moves")
        self._buckets = cycle(sorted(homes))
        self._goes_on = self._was_struck = False
        self._bucket = self._there = ""
        self._left: deque[Command] = deque()
        """What is to be done in this round. The first one runs, or is the next one to run."""

    def begin(self) -> None:
        """Let the first round begin. The buckets exist."""
        self._goes_on = bool(self.homes)

    def finish(self) -> None:
        """Let no further round begin."""
        self._goes_on = False

    @property
    def may_be_struck(self) -> bool:
        """See chaos_fleet.Errands. This is at any time while a bucket is moved, as far as one can know from the last
        move. A command must have succeeded since the last strike: else a busy machine would complete none."""
        moves = bool(self._left) and self._left[0][:2] == ("cells", "move")
        return moves and bool(self._move_s) and not self._was_struck and self._now_s() >= self._strike_s

    def struck(self) -> None:
        """See chaos_fleet.Errands."""
        self._was_struck = True

    @property
    def unfinished(self) -> str:
        """The command that the current round waits for, if any."""
        return " ".join(self._left[0]) if self._left else ""

    def next_command(self) -> Command | None:
        """See chaos_fleet.Errands."""
        if not self._left and self._goes_on:
            self._bucket = next(self._buckets)
            here = self.homes[self._bucket]
            self._there = self._random.choice([name for name in self._cells if name != here])
            self._left.extend(self._round())
        if not self._left:
            return None
        self._began_s = self._now_s()
        self._strike_s = self._began_s + self._random.random() * self._move_s
        return self._left[0]

    def _round(self) -> list[Command]:
        return commands_of_round(self._bucket, self.homes[self._bucket], self._there, "--bytes-per-s", RATE)

    def ended(self, code: int, said: str) -> bool:
        """See chaos_fleet.Errands."""
        command = self._left[0]
        here = self.homes[self._bucket]
        gives_up = command[:2] == ("cells", "move") and command[4] == here
        if not self._may_end(command, code, said, gives_up=gives_up):
            self.problems.append(f"{' '.join(command)} ended with exit code {code}: {said.strip()[-1000:]}")
        if code == 0:
            self._was_struck = False
            self._left.popleft()
            if gives_up:
                self.counts["given up"] += 1
                self._left = deque(commands_of_round(self._bucket, self._there, here)[1:])
            elif command[:2] == ("cells", "move"):
                self.counts["completed"] += 1
                self._move_s = self._now_s() - self._began_s
                self.homes[self._bucket] = self._there
        elif gives_up and code in (_REFUSED, _CONFLICT):
            # The bucket is already in the other cell, or is about to be, or nothing was left to be given up.
            self._left = deque([("--cell", self._there, "metadata", "dump"), *self._round()])
        elif command[:2] == ("cells", "move") and not gives_up:
            self.counts["interrupted"] += 1
            if self._random.random() < GIVE_UP_SHARE:
                self._left[0] = ("cells", "move", self._bucket, "--to", here)
        return code == 0

    @staticmethod
    def _may_end(command: Command, code: int, said: str, *, gives_up: bool) -> bool:
        """Return whether a command may end with this code. A dump waits for the lease of one that was killed. A busy
        machine may let a command be taken for dead again and again."""
        if gives_up and code in (_REFUSED, _CONFLICT):
            return True
        return code in _ENDED or (code == _CONFLICT and (command[-1] == "dump" or _FOR_DEAD in said))
