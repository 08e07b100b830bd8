"""The schema, its migrations, the conversion of rows to values of the ports, and the base class of the parts.

May import `driver`, ports and core. Begin with schema.py, which documents every table and column.
"""
