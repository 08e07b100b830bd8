"""The contract suites that every adapter must pass, and the fakes that tests use."""
