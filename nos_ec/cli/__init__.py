"""The `nos-ec` command."""

from nos_ec.cli.app import main

__all__ = ["main"]
