"""Runs the whole pipeline on a real folder, on whatever backends are configured, for `nos-ec demo`."""
