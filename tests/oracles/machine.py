"""Drives the real scheduler through a random world, to the trace that oracles compare."""

from __future__ import annotations

from collections import deque

from durable_strands.wire import GraphPlan
from durable_strands.workflows.commands import Ask, Command, Dispatch, Ending, Finish
from durable_strands.workflows.scheduler import Scheduler

from .world import ConditionRaisedError, Result, Trace, View, World


def run_scheduler(plan: GraphPlan, world: World) -> Trace:
    """Run `plan` on the scheduler in `world` and record everything that has one right value."""
    machine: Scheduler[Result] = Scheduler(plan)
    trace = Trace()
    commands: deque[Command[Result]] = deque(machine.start())
    visits: dict[str, int] = {}
    step = 0
    while True:
        while commands:
            command = commands.popleft()
            if isinstance(command, Dispatch):
                visits[command.node] = command.visit
                inputs = tuple(result for _, result in command.inputs)
                assert [node for node, _ in command.inputs] == [node for node, _ in inputs]
                trace.dispatches.append((command.node, command.visit, inputs))
            elif isinstance(command, Ask):
                assert not commands, "a question is the last command of an event"
                try:
                    answers = _answer(command, machine, world, trace)
                except ConditionRaisedError as raised:
                    commands.extend(machine.abort(f"condition:{raised}"))
                else:
                    commands.extend(machine.answered(answers))
            else:
                return _finished(command, machine, trace)
        node = world.next_to_end(step, machine.in_flight)
        step += 1
        ending = world.ending(node, visits[node])
        commands.extend(machine.ended(node, Ending(ending), (node, visits[node])))


def _answer(ask: Ask, machine: Scheduler[Result], world: World, trace: Trace) -> list[list[bool]]:
    answers: list[list[bool]] = []
    for question in ask.questions:
        view = View(frozenset(machine.completed) - frozenset(question.hidden), tuple(machine.order))
        verdicts: list[bool] = []
        for edge in question.edges:
            try:
                verdict = world.condition(edge, view)
            except ConditionRaisedError:
                trace.asked.append((str(edge), None))
                raise
            trace.asked.append((str(edge), verdict))
            verdicts.append(verdict)
            if verdict and question.until_true:
                break
        answers.append(verdicts)
    return answers


def _finished(finish: Finish, machine: Scheduler[Result], trace: Trace) -> Trace:
    plan = machine.plan
    trace.order = machine.order
    trace.completed = [node.id for node in plan.nodes if node.id in machine.completed]
    trace.failed = [node.id for node in plan.nodes if node.id in machine.failed]
    trace.status = finish.status.value
    if finish.failed_node is not None:
        trace.reason = f"raised:{finish.failed_node}"
    elif finish.reason == machine.executions_reason:
        trace.reason = "max_node_executions"
    else:
        trace.reason = finish.reason
    return trace
