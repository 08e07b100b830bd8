"""Suites and servers for the SQL databases: plans, races, damage, figures, histories of versions."""
