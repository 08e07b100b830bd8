"""The object store as a Python library: open it, PUT, GET, HEAD, LIST and DELETE. docs/PYTHON.md has examples."""
