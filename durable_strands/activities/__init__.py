"""Side effects: where Strands and the user's code run.

Imports `wire`, `codec` and strands.
"""
