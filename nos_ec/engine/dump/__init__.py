"""Dumps the rows of a store, and rebuilds them from a dump and from the contents of blocks and the landing log."""
