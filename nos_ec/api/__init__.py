"""The read-only admin API over HTTP: routes, answer models, access checks. Begin with app.py."""
