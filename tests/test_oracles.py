"""A seeded part of `make oracle`: the scheduler against both its oracles."""

from __future__ import annotations

import pytest

from .oracles.compare import dataflow_difference, strands_difference

SEEDS = range(100_000, 100_600)


@pytest.mark.parametrize("first", SEEDS[::100])
def test_dataflow_runs_as_the_design_says(first: int) -> None:
    found = [text for seed in range(first, first + 100) if (text := dataflow_difference(seed))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("first", SEEDS[::100])
async def test_strands_semantics_runs_as_strands_own_graph(first: int) -> None:
    found = [text for seed in range(first, first + 100) if (text := await strands_difference(seed))]
    assert not found, "\n".join(found)
