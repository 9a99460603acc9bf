# SPDX-License-Identifier: Apache-2.0
"""The page of ``dpcohort watch --serve``: a run as it goes on, by server-sent events, read-only."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import secrets
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from dpcohort.deploy._http import Request, serve_http
from dpcohort.errors import DpcohortError
from dpcohort.plain_text import one_line
from dpcohort.runs import Run
from dpcohort.runs._status import describe, executed_by, read_status, run_of

#: Clients in the table; seconds between two looks, and until a sign of life.
_MOST, _LOOK, _ALIVE = 200, 1.0, 15.0


def picture_of(out: Path) -> dict[str, Any]:
    """What the page shows of a run: nothing that its folder and its status do not publish."""
    status = read_status(out)
    doing = describe(status) if executed_by(out) else status.get("doing", "nobody executes it now")
    told: dict[str, Any] = {
        "title": out.name,
        "doing": doing,
        "rounds": status.get("rounds", 0),
        "done": 0,
        "left": "",
        "curve": [],
        "score": "",
        "clients": [],
        "more": "",
    }
    run = None
    with suppress(DpcohortError):  # it has not begun
        run = Run.load(out)
    if run is None:
        names = sorted({*status.get("waiting", []), *status.get("answered", [])})
        told["clients"] = [_row(name, status, "", "") for name in names[:_MOST]]
        return told
    plan, done = run.plan, run.rounds_done
    curve = run.curve().score
    told["title"] = f"{run.settings.get('run') or out.name}: {run.settings.get('label', '')}"
    told |= {"rounds": plan.training.rounds, "done": done, "left": _time_left(run, status)}
    if run.is_finished:
        told["doing"] = "finished"
    if curve.size:
        told["curve"] = [float(value) for value in curve if math.isfinite(value)]
        told["score"] = f"Test {run.metric.words} {run.metric.text(float(curve[-1]))}"
    drawn = np.flatnonzero(plan.drawn)
    left = plan.counts - run.ledger.draws
    missing = status.get("missing", {})
    order = sorted(drawn.tolist(), key=lambda k: (plan.population.ids[k] not in missing, left[k]))
    for k in order[:_MOST]:
        epsilon = float(plan.population.epsilon[k])
        promised = "public" if math.isnan(epsilon) else f"{epsilon:.3g}"
        row = _row(plan.population.ids[k], status, promised, f"{left[k]} of {plan.counts[k]}")
        told["clients"].append(row)
    if len(order) > _MOST:
        told["more"] = f"and {len(order) - _MOST} more, with more draws left"
    return told


def _row(name: str, status: dict[str, Any], promised: str, left: str) -> dict[str, Any]:
    missing = status.get("missing", {}).get(name)
    now = "asked" if name in status.get("waiting", []) else ""
    if name in status.get("answered", []):
        now = "answered"
    if missing is not None:
        since = time.strftime("%d %b %H:%M", time.localtime(missing["since"]))
        now = f"missing since {since}: {missing['why']}"
    return {"cells": [one_line(name), now, promised, left], "missing": missing is not None}


def _time_left(run: Run, status: dict[str, Any]) -> str:
    """From the rounds' seconds where they are public, else from what the server itself saw."""
    togo = run.plan.training.rounds - run.rounds_done
    seconds = [line.seconds for line in run.history[-20:] if math.isfinite(line.seconds)]
    if not togo or run.is_finished or set(status.get("missing", {})) & {*status.get("waiting", [])}:
        return ""
    if seconds:
        left = togo * sum(seconds) / len(seconds)
    elif status.get("first") is not None and run.rounds_done > status["first"]:
        # Guards answer at multiples of answer_seconds, whatever they drew.
        left = togo * (time.time() - status["began"]) / (run.rounds_done - status["first"])
    else:
        return ""
    return f"{left:.0f} s left" if left < 120 else f"{left / 60:.0f} min left"


def serve_page(path: Path, address: str) -> str:
    """Serve a run's page from threads of this process; the link to it, with its token.

    Raises:
        InputError: nothing can listen there, or the file is no federation's.
    """
    out, token = run_of(path), secrets.token_urlsafe(16)
    page = resources.files("dpcohort.cli").joinpath("watch.html").read_text(encoding="utf-8")
    policy = "default-src 'none'; connect-src 'self'; frame-ancestors 'none'"
    for kind in ("style", "script"):
        inner = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.S)[0]
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        policy += f"; {kind}-src 'sha256-{digest}'"

    def respond(request: Request) -> None:
        asked = urlsplit(request.path)
        given = parse_qs(asked.query).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), token.encode()):
            request.send("text/plain", "the link that watch printed has a token\n", 403)
        elif asked.path == "/":
            safe = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
            request.send("text/html", page, headers=safe)
        elif asked.path == "/events":
            request.send("text/event-stream", "")
            _tell(request, out)
        else:
            request.send("text/plain", "nothing is here\n", 404)

    host, port = serve_http("--serve", address, respond)
    return f"http://{host}:{port}/?token={token}"


def _tell(request: Request, out: Path) -> None:
    """Send the state of a run whenever it has changed, until the reader is gone."""
    sent, at = "", 0.0
    while True:
        state = json.dumps(picture_of(out))
        if state != sent:
            request.wfile.write(f"data: {state}\n\n".encode())
            sent, at = state, time.monotonic()
        elif time.monotonic() - at > _ALIVE:
            request.wfile.write(b": still here\n\n")
            at = time.monotonic()
        request.wfile.flush()
        time.sleep(_LOOK)
