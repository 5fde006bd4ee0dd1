"""Strands' own tests of its graphs, run through durable-strands: `make conformance`.

The tests come from the source distribution of the installed strands-agents release; nothing of
it is kept in this repository. Their graphs are served by a worker in the tests' process, since
their executors are mocks that are counted, and run by a real workflow on a real dev server.
"""
