"""Figures about a store: totals, usage, the cost of its space, counts of requests, and the export of events.

These modules read and count, and do not change any object. May import `objects` and `expiry`, ports and core. Begin
with store_totals.py, which `nos-ec status` shows.
"""
