"""The verdict as an event of OpenTelemetry: one log record, in the JSON that every collector takes over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from rankscope import __version__
from rankscope.diagnosis.verdict import Verdict
from rankscope.mask import mask_text
from rankscope.report.plain_text import plain

_PATH = "/v1/logs"
_SEVERITIES = {"ok": (9, "INFO"), "interrupted": (13, "WARN"), "slow": (13, "WARN"), "unknown": (13, "WARN")}
_ERROR = (17, "ERROR")


def address_of(given: str) -> str:
    """Where log records go, if the address names the collector alone."""
    parts = urlsplit(given)
    return given if parts.path.strip("/") else urlunsplit(parts._replace(path=_PATH))


def headers_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What OpenTelemetry's own variables say that a request needs: `api-key=...,tenant=...`."""
    told = environment.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (pair.partition("=") for pair in told.split(",") if "=" in pair)
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in pairs}


def log_request(
    verdict: Verdict, event: str, host: str, run: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """An ExportLogsServiceRequest."""
    number, text = _SEVERITIES.get(verdict.outcome, _ERROR)
    now = str(time.time_ns())
    record = {
        "timeUnixNano": now,
        "observedTimeUnixNano": now,
        "severityNumber": number,
        "severityText": text,
        "eventName": "rankscope.verdict",
        "body": _value(verdict.headline),
        "attributes": _attributes(
            {
                "rankscope.event": event,
                "rankscope.outcome": verdict.outcome,
                "rankscope.cause": verdict.cause,
                "rankscope.certainty": verdict.certainty,
                "rankscope.retry": verdict.retry,
                "rankscope.culprits": [culprit.rank for culprit in verdict.culprits if culprit.rank is not None],
                "rankscope.victims": list(verdict.victims),
                "rankscope.hosts": sorted({culprit.host for culprit in verdict.culprits if culprit.host}),
                "rankscope.world_size": verdict.world_size,
                "rankscope.because": list(verdict.because),
                "rankscope.fix": list(verdict.fix),
                "rankscope.run": run,
                **_code(verdict),
            }
        ),
    }
    name = (environment or {}).get("OTEL_SERVICE_NAME") or "rankscope"
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": _attributes({"service.name": name, "host.name": host})},
                "scopeLogs": [{"scope": {"name": "rankscope", "version": __version__}, "logRecords": [record]}],
            }
        ]
    }


def _code(verdict: Verdict) -> dict[str, Any]:
    """The culprit's line, by the names that OpenTelemetry has for it."""
    where = next((culprit.where for culprit in verdict.culprits if culprit.where is not None), None)
    if where is None:
        return {}
    return {"code.file.path": where.file, "code.line.number": where.line, "code.function.name": where.function}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value not in (None, "", [])]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": plain(mask_text(str(value)))}
