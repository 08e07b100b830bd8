"""Maintenance of a store: fences expired leases, deletes copies that are no longer needed, rebuilds lost shards.

Daemons run it in turns with their own work. May import `landing`, `expiry` and `figures`, ports and core. Begin with
housekeeping.py, then recovery.py (blocks of dead writers) and reaper.py (copies of packed objects).
"""
