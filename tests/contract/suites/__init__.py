"""The contract of each port as a suite of tests, which every adapter runs.

A new adapter derives a test class from the suite of its port, and provides the fixture that the suite names. Begin with
block_store_contract.py.
"""
