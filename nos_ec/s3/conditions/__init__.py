"""Conditions and variables of bucket policies.

keys       the condition keys that a policy may use, and the protocol that returns their values
patterns   texts of a policy with wildcards and variables
operators  the Condition element: parsing and evaluation
"""
