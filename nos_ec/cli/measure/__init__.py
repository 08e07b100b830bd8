"""Commands that measure or simulate: `nos-ec bench` and `nos-ec simulate`.

May import `terminal`. Begin with simulate.py.
"""
