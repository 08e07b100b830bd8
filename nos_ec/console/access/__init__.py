"""Who may see the console, and which requests it answers: tokens, sessions, the login form, and what every request has
to pass. Begin with login.py.
"""
