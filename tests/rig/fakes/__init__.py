"""Fakes of ports, a fake clock, a metadata store for suites, and the audit of a whole store."""
