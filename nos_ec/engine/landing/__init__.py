"""Where small objects wait until they are packed: each as a copy of its own, or as a record in a segment of the landing
log.

May import ports, core and the engine modules that many packages use; `objects` and `packing` are built on it. Begin
with lander.py (the interface), then landing_log.py (appends), segment_seal.py and log_recovery.py (after a crash).
"""
