"""What the test suites and soak tests need: servers, chaos, power cuts, probes of SQL. Not shipped."""
