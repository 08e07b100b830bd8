"""The `nos-ec` command."""

import sys

from nos_ec.cli.signals import end_quietly

__all__ = ["main"]


def main() -> None:
    """Entry point of `nos-ec`."""
    end_quietly()  # loading the rest takes a second
    from nos_ec.cli.app import run
    from nos_ec.cli.ending import end_with

    end_with(lambda: run(sys.argv[1:]))
