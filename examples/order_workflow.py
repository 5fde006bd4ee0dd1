"""The workflow of examples/child_workflow.py: ordinary Temporal, without any import of strands."""

from __future__ import annotations

from temporalio import workflow

from durable_strands.workflow import ChildGraphError, run_graph


@workflow.defn
class Order:
    """Has a graph of agents look at an order, and decides by what it says."""

    @workflow.run
    async def run(self, text: str) -> str:
        try:
            report = await run_graph("risk", text, invocation_state={"channel": "web"})
        except ChildGraphError as error:
            reached = list(error.report.results) if error.report else []
            return f"by hand: {error.message} (nodes reached: {', '.join(reached)})"
        return f"accepted, risk {report.results['score'].state['value']}"
