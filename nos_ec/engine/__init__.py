"""The use cases, through ports only."""
