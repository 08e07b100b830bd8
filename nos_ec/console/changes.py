"""The forms with which named operators make changes: they pause, resume and limit GC, and undelete an object.

A form carries what its page has shown, and changes nothing if that holds no more. After a change, the browser gets a
page again, so that reloading that page does not repeat the change. Without console.changes, there are no such routes.
"""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from nos_ec.composition.wiring import System
from nos_ec.console.access.login import own_form
from nos_ec.console.objects import trash_mark
from nos_ec.console.panels import Panels
from nos_ec.console.space import GC_NOW
from nos_ec.console.view import VISITOR, View
from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.figures.events import EventKind, Outcome
from nos_ec.engine.gc.control import OPERATIONS_MAX, Control, control_of
from nos_ec.settings.values import bytes_of

THREADS = 4
"""Changes that are made at the same time. Others wait, so that a database that hangs leaves threads to the pages."""
BYTES_PER_S_MAX = 1 << 50
ONLY_OPERATORS = "Only operators with a token of their own may make changes."
_ACTIONS = ("pause", "resume", "limit")


def wanted_control(form: dict[str, str], seen: Control) -> Control:
    """Return the commands to GC that a form asks for. Raises InvalidInput."""
    action = form.get("action", "")
    if action not in _ACTIONS:
        raise InvalidInput(f"action={action!r} is none of {', '.join(_ACTIONS)}")
    if action != "limit":
        return replace(seen, paused=action == "pause")
    size, operations = form.get("bytes_per_s", "").strip(), form.get("operations_per_s", "").strip()
    try:
        bytes_per_s = bytes_of(size) if size else None
    except ValueError as error:
        raise InvalidInput(f"bytes per second {size!r}: {error}; give a size such as 64MiB, 0 for no limit") from error
    if bytes_per_s is not None and bytes_per_s > BYTES_PER_S_MAX:
        raise InvalidInput(f"bytes per second {size!r}: more than {BYTES_PER_S_MAX}; give 0 for no limit")
    if operations and not (operations.isdecimal() and len(operations) <= 10 and int(operations) <= OPERATIONS_MAX):
        raise InvalidInput(f"operations per second {operations!r}: not a number from 0 to {OPERATIONS_MAX}")
    return replace(seen, bytes_per_s=bytes_per_s, operations_per_s=int(operations) if operations else None)


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the routes of the forms; none if the settings allow no changes."""
    if not view.changes:
        return []
    changes, can = system.operator.changes(), system.client.trash()
    threads = Semaphore(THREADS)

    async def made(request: Request, change: Callable[[str, dict[str, str]], object], place: str) -> Response:
        """Make a change as the operator who sent the form, and lead to a page."""
        form, operator = await own_form(request), request.scope[VISITOR].operator
        if not operator:
            raise HTTPException(HTTPStatus.FORBIDDEN, ONLY_OPERATORS)
        async with threads:
            await run_in_threadpool(change, operator, form)
        return RedirectResponse(place, HTTPStatus.SEE_OTHER)

    async def control(request: Request) -> Response:
        def change(operator: str, form: dict[str, str]) -> None:
            seen = control_of(form.get("seen", ""))
            if seen.text != form.get("seen"):
                raise InvalidInput("the form does not say which state of GC was seen; open Space and GC again")
            now = changes.control_gc(operator, seen, wanted_control(form, seen))
            panels.forget(GC_NOW)
            system.events().record(EventKind.CONTROL, Outcome.DONE, f"GC is {now.in_words}, by {operator}")

        return await made(request, change, f"{view.base}/space")

    async def undelete(request: Request) -> Response:
        query = request.query_params
        key, mark = ObjectKey(query.get("bucket", ""), query.get("name", "")), trash_mark(query.get("trash", ""))

        def change(operator: str, _form: dict[str, str]) -> None:
            if mark is None:
                raise InvalidInput("the form does not say which version in the trash was seen; open the trash again")
            changes.undelete(operator, can.at(key, mark))

        place = urlencode({"bucket": key.bucket, "name": key.name})
        return await made(request, change, f"{view.base}/objects/one?{place}")

    return [Route("/space/control", control, methods=["POST"]), Route("/objects/undelete", undelete, methods=["POST"])]
