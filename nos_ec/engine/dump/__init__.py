"""Dumps of the rows of a store, and rebuilding them from a dump and from what blocks and the landing log tell."""
