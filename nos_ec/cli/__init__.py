"""The `nos-ec` command."""

import gc
import sys

from nos_ec.cli.terminal.signals import end_quietly
from nos_ec.cli.terminal.streams import protect_stderr

__all__ = ["main"]


def main() -> None:
    """Entry point of `nos-ec`."""
    end_quietly()  # loading the rest takes a second
    protect_stderr()
    gc.disable()  # what is loaded stays: to go over it again and again takes a tenth of that time
    from nos_ec.cli.app import commands, run
    from nos_ec.cli.terminal.ending import end_with

    commands(sys.argv[1:])
    gc.freeze()
    gc.enable()
    end_with(lambda: run(sys.argv[1:]))
