"""Where small objects wait until they are packed: a copy each, or records in the segments of the landing log.

May import ports, core and the modules of the engine that many use; `objects` and `packing` are built on it. Begin with
lander.py (the interface), then landing_log.py (appends), segment_seal.py and log_recovery.py (after a crash).
"""
