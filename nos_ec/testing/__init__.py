"""Contract suites every adapter must pass, and the fakes tests use."""
