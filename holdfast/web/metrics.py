"""`/metrics`: the gauges of the whole store, for a Prometheus that has the token or that `access` lets in."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import Holdfast
from holdfast.errors import UsageError
from holdfast.telemetry.metrics_counts import Counts
from holdfast.telemetry.metrics_prometheus import CONTENT_TYPE, require_extra, text_of
from holdfast.web.shared_answers import Questions


async def serve_metrics(request: Request, questions: Questions) -> Response:
    """The same within about a second is asked once, as on every page."""
    try:
        require_extra()
    except UsageError as error:
        raise HTTPException(501, str(error)) from None
    answered = await questions.ask("metrics", _text)
    return Response(answered.value, headers={"content-type": CONTENT_TYPE})


def _text(app: Holdfast) -> str:
    return text_of(Counts(), app.gauges()).decode()
