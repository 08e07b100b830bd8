"""Measures the product against the best that the stack could do (the floor) and against storing without it (naive).

meter.py measures, figures.py sums up, offline.py and objects.py prepare a store. May import everything below the CLI.
Begin with pipeline.py.
"""
