"""Defines object locks: what a lock is and how it is stored (`lock.py`), and notes about locks that were changed after
their PUT (`lock_note.py`)."""
