"""Declares every metric once: its name, meaning and labels, and advice to the operator.

docs/METRICS.md and the dashboard are generated from them. May import core. Start reading with metric.py, then
metrics.py.
"""
