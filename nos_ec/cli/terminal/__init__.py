"""Parts that all commands share: output and its formats, errors and exit codes, signals, the open store.

May import everything below the CLI, but no command. Start reading with context.py and output.py.
"""
