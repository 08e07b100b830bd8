"""All suites, and the rig that they share. CONTRIBUTING.md describes them."""
