"""Commands for operators: status, check, scrub, explain, dumps and rebuilds of the metadata, audit, configuration.

May import `terminal`, `files` and `commands`. Start reading with status.py.
"""
