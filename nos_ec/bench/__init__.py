"""Measures the product against the best that the stack could do (the floor) and against storing without it (naive)."""
