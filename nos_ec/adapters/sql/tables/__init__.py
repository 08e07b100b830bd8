"""The schema, its migrations, and how rows are read and written as values of the ports.

May import `driver`, ports and core. Begin with schema.py, which documents every table and column.
"""
