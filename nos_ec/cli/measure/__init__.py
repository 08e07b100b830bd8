"""Commands that measure or simulate: `nos-ec bench` and `nos-ec simulate`.

May import `terminal`. Start reading with simulate.py.
"""
