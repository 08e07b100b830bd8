"""One run of GC: the context that its parts share, its progress and speed, what ends it, and the note and the events
that it leaves.

Imports what nos_ec.engine.gc may import. Begin with context.py.
"""
