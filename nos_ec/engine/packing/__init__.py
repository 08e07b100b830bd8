"""Writes stripe groups: reads the waiting copies, appends the stripes of a plan to a block, and commits the rows.

`core.packing` decides what goes into a group. May import ports, core and the engine modules that many packages use.
Begin with stripe_writer.py; lanes.py runs several writers at a time.
"""
