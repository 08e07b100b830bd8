"""The Simulator: packing of a list of sizes, and GC at several targets, computed in a child process.

page.py has the forms and the page of a simulation, jobs.py runs one at a time, and child.py is the program that
computes it.
"""
