"""The `nos-ec` command."""

import gc
import sys

from nos_ec.cli.terminal.signals import end_quietly
from nos_ec.cli.terminal.streams import protect_stderr

__all__ = ["main"]


def main() -> None:
    """Run the command `nos-ec`, and end the process with its exit code."""
    end_quietly()  # loading the rest takes a second
    protect_stderr()
    gc.disable()  # loaded modules stay alive, so collecting while loading is useless; it takes a tenth of the time
    from nos_ec.cli.app import commands, run
    from nos_ec.cli.terminal.ending import end_with

    commands(sys.argv[1:])
    gc.freeze()
    gc.enable()
    end_with(lambda: run(sys.argv[1:]))
