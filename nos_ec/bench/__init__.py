"""Measures the product against what the stack could do at best (the floor) and what it would do without it (naive)."""
