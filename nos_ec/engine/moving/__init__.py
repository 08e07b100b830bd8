"""Moves buckets from one cell to another (docs/adr/0066).

Begin with `bucket_mover.py`, the steps of a move; `version_copier.py` copies the versions of keys, and `keys.py`
compares what two cells have. May import all other packages of the engine.
"""
