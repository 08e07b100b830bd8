"""Bytes and texts that are stored or sent: headers of groups, landing segments, dumps, messages, the audit trail.

docs/FORMAT.md specifies them, and tests/golden has samples. May import the modules of core itself. Begin with
header.py.
"""
