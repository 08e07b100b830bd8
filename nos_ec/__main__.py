"""`python -m nos_ec`: the same as `nos-ec`."""

from nos_ec.cli import main

main()
