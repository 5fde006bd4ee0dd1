"""Reads what a session's agents remember: the local activity at the begin of its later runs."""

from __future__ import annotations

import json
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from .. import wire
from ..history import last_snapshots, started_with


async def read_session(data: dict[str, Any]) -> dict[str, Any]:
    """Return a page of the snapshots of a session's last run: the body of the session activity.

    Args:
        data: A `wire.SessionRequest` as a JSON object.

    Returns:
        A `wire.SessionPage` as a JSON object.

    Raises:
        ApplicationError: Of type `InvalidGraphInput`: there is no such run.
    """
    request = wire.SessionRequest.load(data)
    found = list((await _snapshots(activity.client(), request.session)).items())
    page: dict[str, dict[str, Any]] = {}
    size = 0
    for path, snapshot in found[request.after :]:
        size += len(json.dumps(snapshot))
        if page and size > request.limit:
            break
        page[path] = snapshot
    more = request.after + len(page) < len(found)
    return wire.SessionPage(run_id=request.session.run_id, snapshots=page, more=more).dump()


async def _snapshots(client: Client, session: wire.Session) -> dict[str, dict[str, Any]]:
    """Return the snapshots with which a run ended; if it never read any, those before it."""
    handle = client.get_workflow_handle(session.workflow_id, run_id=session.run_id)
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise  # It may go the next time.
        raise ApplicationError(
            f"The last run of session {session.workflow_id!r} can't be read: {error.message}. "
            "The server may have removed it when its retention time was over.",
            type=wire.ErrorType.INVALID_INPUT,
            non_retryable=True,
        ) from error
    snapshots, was_told = await last_snapshots(history.events, client.data_converter)
    before = (await started_with(history.events[0], client.data_converter)).session
    if was_told or before is None or before.run_id is None:
        return snapshots
    return await _snapshots(client, before) | snapshots  # It ended before it could begin.
