"""What the test suites and soak tests run on: servers, chaos, power cuts, probes of SQL. Not shipped."""
