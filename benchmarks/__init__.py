"""Benchmarks: this library beside a hand-written workflow of the same shape.

`python -m benchmarks` runs them; docs/performance.md says what is measured and why.
"""
