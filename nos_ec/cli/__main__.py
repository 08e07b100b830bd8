"""Runs `nos-ec` for `python -m nos_ec.cli`."""

from nos_ec.cli import main

if __name__ == "__main__":
    main()
