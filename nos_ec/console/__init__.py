"""The console: pages that show operators a store, served over HTTP by `nos-ec console`. They only read, but for
the forms of changes.py.

A page is made of panels (panels.py). A module such as overview.py turns readings of the store into plain values, a
template shows them, and a route joins the two (app.py). Begin with app.py; docs/CONSOLE.md says what each page shows.
Needs the extra `nos_ec[console]`.
"""
