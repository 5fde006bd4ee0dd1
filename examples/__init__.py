"""Small graphs, one for each capability. Run one with `python -m examples.approval`."""
