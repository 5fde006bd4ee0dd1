"""The same random graph on Strands' own `Graph` and on a real worker, compared exactly.

`python -m tests.differential [--graphs N] [--dataflow N] [--seed S]`. Where durable-strands means
to be better than Strands, `rules` says so, rule by rule; nothing else may differ. With the default
semantics, which Strands doesn't have, the worker is compared with the oracles' model.
"""
