"""Writes stripe groups: reads the waiting copies, appends the stripes of a plan to a block, and commits the rows.

What goes into a group is decided in `core.packing`. May import ports, core and the modules of the engine that many
use. Begin with stripe_writer.py; lanes.py runs several writers at a time.
"""
