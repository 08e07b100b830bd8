"""Sphinx builds the site from the Markdown pages: `make docs`. A broken link is an error."""

project = "nos_ec"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "nos_ec"
master_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "deploy/README.md", "docs/**.md"]
myst_heading_anchors = 4
