"""Reads what an earlier run has done: the local activity behind a retried run."""

from __future__ import annotations

import json
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from .. import wire
from ..history import finished_visits, started_with


async def read_journal(data: dict[str, Any]) -> dict[str, Any]:
    """Return a page of an earlier run's finished visits: the body of the journal activity.

    Args:
        data: A `wire.JournalRequest` as a JSON object.

    Returns:
        A `wire.JournalPage` as a JSON object.

    Raises:
        ApplicationError: Of type `InvalidGraphInput`: there is no such run.
    """
    request = wire.JournalRequest.load(data)
    kept = await _finished(activity.client(), request.retry_of)
    page: list[wire.JournalEntry] = []
    size = 0
    for entry in kept[request.after :]:
        size += len(json.dumps(entry.dump()))
        if page and size > request.limit:
            break
        page.append(entry)
    more = request.after + len(page) < len(kept)
    return wire.JournalPage(entries=page, more=more).dump()


async def _finished(client: Client, retry_of: wire.RetryOf) -> list[wire.JournalEntry]:
    """Return what a run has finished, and before it the run that it retried itself."""
    handle = client.get_workflow_handle(retry_of.workflow_id, run_id=retry_of.run_id)
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise  # It may go the next time.
        raise ApplicationError(
            f"The run to retry, {retry_of.workflow_id!r}, can't be read: {error.message}",
            type=wire.ErrorType.INVALID_INPUT,
            non_retryable=True,
        ) from error
    request = await started_with(history.events[0], client.data_converter)
    found = await _finished(client, request.retry_of) if request.retry_of else []
    found += await finished_visits(history.events, client.data_converter)
    latest = {(entry.outcome.node, entry.outcome.visit): entry for entry in found}
    again = retry_of.from_node
    return [
        entry
        for entry in latest.values()
        if again is None or not f"{entry.outcome.node}/".startswith(f"{again}/")
    ]
