"""`python -m nos_ec.cli` is `nos-ec`."""

from nos_ec.cli import main

if __name__ == "__main__":
    main()
