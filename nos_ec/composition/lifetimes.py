"""What learns how long objects live, unless the settings ask for a single stream, for which that does not matter."""

from __future__ import annotations

import random
from contextlib import ExitStack

from nos_ec.engine.expiry.survival import Deaths, Survey
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Survival
from nos_ec.settings import Settings


def watch_deaths(settings: Settings, metadata: Survival, clock: Clock, stack: ExitStack) -> None:
    """Count the deaths that this process makes, until the stack is closed."""
    if settings.gc.streams > 1:
        deaths = Deaths(metadata, clock)
        metadata.watch_deaths(deaths.died)
        stack.callback(deaths.flush)


def new_survey(settings: Settings, metadata: Survival, clock: Clock, rng: random.Random) -> Survey | None:
    """The survey that housekeeping makes."""
    return Survey(metadata, clock, rng) if settings.gc.streams > 1 else None
