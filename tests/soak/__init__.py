"""Many runs with approvals and failures, under workers that are killed at random.

`python -m tests.soak` (`make soak`); its figures are in docs/reliability.md.
"""
