# SPDX-License-Identifier: Apache-2.0
"""Logs as JSON lines, Prometheus metrics and a health endpoint, for those who operate the parts.

Nothing here depends on a record. The metrics of a process (its processor time above all) are left
out: they would tell how many records a guard drew.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dpcohort.deploy._http import Request, serve_http
from dpcohort.errors import InputError, missing_extra
from dpcohort.plain_text import one_line

Log = Callable[[str], None]
#: Seconds between two writings of a file of metrics, whatever happens in between.
_EVERY = 15.0


class LogLine(str):
    """A line of a log with the facts in it.

    Example:
        >>> LogLine("round 3 of 8", round=2).facts
        {'round': 2}
    """

    facts: Mapping[str, Any]
    __slots__ = ("facts",)

    def __new__(cls, words: str, **facts: Any) -> LogLine:
        line = super().__new__(cls, words)
        line.facts = facts
        return line


def json_line(part: str, line: str, clock: Callable[[], float] = time.time) -> str:
    """A line of a log as JSON: time, part, facts, words.

    Example:
        >>> json_line("guard", LogLine("draw: refused", run="spring", round=3), lambda: 0.0)
        '{"time": "1970-01-01T00:00:00Z", "part": "guard", "run": "spring", "round": 3, ...
    """
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock()))
    facts = dict(line.facts) if isinstance(line, LogLine) else {}
    return json.dumps({"time": at, "part": part, **facts, "words": one_line(line, 800)})


class Metric(NamedTuple):
    """One number of a part.

    Attributes:
        name: without the prefix ``dpcohort_``.
        help: what it is.
        value: now.
        labels: whose.
    """

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = {}


def publish_metrics(
    where: str, metrics: Callable[[], Iterable[Metric]], ill: Callable[[], str]
) -> str:
    """Publish the metrics of a part, as long as its process lives; where.

    Args:
        where: host and port, for ``/metrics`` and ``/health``; or a file, ``FILE.prom``, for the
            text collector of a node exporter: a guard has no network.
        metrics: the numbers now.
        ill: why the part does not do its work; empty where it does. ``/health`` answers 503 then.

    Raises:
        InputError: it cannot be published there.
        DataMissingError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import GaugeMetricFamily
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None

    class Collector:
        def collect(self) -> Iterator[Any]:
            families: dict[str, Any] = {}
            found = [Metric("healthy", "Whether the part does its work.", not ill()), *metrics()]
            for one in found:
                family = families.setdefault(
                    one.name,
                    GaugeMetricFamily(f"dpcohort_{one.name}", one.help, labels=list(one.labels)),
                )
                family.add_metric([one_line(value) for value in one.labels.values()], one.value)
            yield from families.values()

    registry = CollectorRegistry()  # none of the process
    registry.register(Collector())

    def text() -> str:
        return generate_latest(registry).decode()

    if where.endswith(".prom"):
        _write(Path(where), text())
        threading.Thread(target=_keep_writing, args=(Path(where), text), daemon=True).start()
        return where

    def respond(request: Request) -> None:
        if request.path == "/metrics":
            request.send("text/plain; version=0.0.4", text())
        elif request.path == "/health":
            words = ill()
            request.send("text/plain", f"{words or 'ok'}\n", 503 if words else 200)
        else:
            request.send("text/plain", "there are /metrics and /health\n", 404)

    host, port = serve_http("--metrics", where, respond)
    return f"http://{host}:{port}/metrics"


def _write(path: Path, text: str) -> None:
    try:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)
    except OSError as error:
        raise InputError.because(f"{path} cannot be written: {error.strerror}.") from None


def _keep_writing(path: Path, text: Callable[[], str]) -> None:
    while True:
        time.sleep(_EVERY)
        with suppress(InputError):  # the disk is full: old numbers say so themselves
            _write(path, text())
