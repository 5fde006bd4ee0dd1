"""Deterministic code: the scheduler and the workflow that drives it.

Imports `wire` and temporalio. Never strands, never user code.
"""
