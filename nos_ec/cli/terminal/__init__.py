"""What every command shares: output and its formats, errors and exit codes, signals, the open store.

May import everything below the CLI, but no command. Begin with context.py and output.py.
"""
