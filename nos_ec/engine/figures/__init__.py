"""Figures about a store: totals, use of space, costs of reads, counts of requests, and the export of events.

It reads and counts, and changes no object. May import `objects` and `expiry`, ports and core. Begin with
store_totals.py, which `nos-ec status` shows.
"""
