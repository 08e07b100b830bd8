"""The producer service: publishes landed objects to the message log."""
