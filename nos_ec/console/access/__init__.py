"""Decides who may see the console and which requests it answers, by tokens, sessions, the login form, and the checks
that every request has to pass. Begin with login.py.
"""
