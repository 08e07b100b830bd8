"""Answers to two questions: why is this object where it is, and why is this block not collected? Only reads."""
