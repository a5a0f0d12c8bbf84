"""The pages of the reference that are generated from commands, settings, rules and figures.

`PAGES` has a function for each page, which returns its Markdown.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_type_hints

from msgspec.structs import fields
from prometheus_client import Metric

from benchmarks import capacity as cluster_capacity
from docs.hooks.commands import command_line
from docs.hooks.settings import configuration, type_name
from rsnotify_hub.admin.hub_readings import HubReadings
from rsnotify_hub.admin.openapi import describe_api
from rsnotify_hub.export_file import (
    VERSION,
    ExportedBroker,
    ExportedFragment,
    ExportedSubscription,
    ExportEnd,
    ExportHeader,
)
from rsnotify_hub.metrics import metric_families
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.nodes import NodeList, StreamInfo
from rsnotify_hub_check import run as hub_check_run
from rsnotify_publisher import SourceMetrics
from rsnotify_subscriber import Fleet, FollowMetrics
from rsnotify_validation import RULES, Rule
from rsnotify_validation.rules import DOCUMENT_RULES, TREE_RULES, VALUE_RULES

# The admin API


def admin_api() -> str:
    """Return the operations and schemas of the OpenAPI description."""
    api = describe_api("")
    parts = [
        "# Admin API of the hub",
        "A request has the header `Authorization: Bearer TOKEN` with an admin's token. A"
        " running hub returns this description as OpenAPI 3.1: `GET /admin/openapi.json`.",
    ]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts += _operation(f"{method.upper()} {path}", operation)
    parts.append("## Errors\n\nThe body is a [Problem](#problem).")
    problems = {
        status: answer["description"]
        for methods in api["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if int(status) >= 400
    }
    parts.append(_table(("status", "meaning"), sorted(problems.items())))
    parts.append("## Schemas")
    for name, schema in api["components"]["schemas"].items():
        parts += [f"### {name}", schema["description"]]
        parts.append(
            _table(
                ("field", "type", "meaning"),
                [
                    (f"`{field}`", _schema_type(each), each.get("description", ""))
                    for field, each in schema.get("properties", {}).items()
                ],
            )
        )
    return "\n\n".join(parts)


def _operation(title: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {title}"
    yield f"{operation['summary']}."
    if operation["parameters"]:
        yield _table(
            ("parameter", "type", "meaning"),
            [
                (
                    f"`{each['name']}`",
                    _schema_type(each["schema"]),
                    each.get("description", "The id"),
                )
                for each in operation["parameters"]
            ],
        )
    if "requestBody" in operation:
        yield f"Body, which may be omitted: {_content(operation['requestBody'])}"
    status, answer = next(iter(operation["responses"].items()))
    yield f"Response {status}" + (f": {_content(answer)}" if "content" in answer else ", no body.")


def _content(described: dict[str, Any]) -> str:
    return _schema_type(described["content"]["application/json"]["schema"])


def _schema_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_schema_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_schema_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any"))


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


# The metrics


def metrics() -> str:
    """Return the metrics of each role; of a hub, with those of a node of several."""
    return "\n\n".join(
        [
            "# Metrics",
            "`GET /metrics`, in the format of Prometheus, of a hub, and at the `--status-port` of"
            " the other commands. In a program: `SourceMetrics` and `FollowMetrics`. Metrics of"
            " the process begin with `process_`.",
            "## Hub",
            "Each name begins with `rsnotify_hub_`.",
            _table(_HEADS, list(_metric_rows(nodes=None))),
            "### A hub of several nodes",
            "Each node has metrics of its own. Add them up, except those of topics and logs,"
            " `fragments_total` and `fragment_bytes_total`, which every node has of the whole hub.",
            _table(_HEADS, list(_metric_rows(nodes=_NODES))),
            "## Source",
            "Each name begins with `rsnotify_source_`.",
            _table(_HEADS, [*map(_row, SourceMetrics().collect())]),
            "## Destination",
            "Each name begins with `rsnotify_follow_`.",
            _table(_HEADS, [*map(_row, FollowMetrics(Fleet()).collect())]),
        ]
    )


_HEADS = ("metric", "labels", "meaning")


_NODES = NodeList(
    rows=(),
    stream=StreamInfo(
        name="log", connected=True, trouble=None, records=0, bytes=0, copies=(), warnings=()
    ),
)


def _metric_rows(nodes: NodeList | None) -> Iterator[tuple[str, ...]]:
    """Yield a row for each metric of a single hub, or for each that only a node has."""
    known = {row[0] for row in _metric_rows(None)} if nodes else set()
    readings = HubReadings(
        version="",
        statistics=Statistics(),
        logs=(),
        subscriptions={},
        lags=lambda: (),
        connections=0,
        delivery_queue=0,
        commit_queue=0,
        nodes=nodes,
    )
    for row in map(_row, metric_families(readings)):
        if row[0] not in known:
            yield row


def _row(family: Metric) -> tuple[str, str, str]:
    name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
    cell = re.sub("^rsnotify_(hub|source|follow)_", "", name)
    return f"`{cell}`", "; ".join(_labels(family)), family.documentation


def _labels(family: Metric) -> Iterator[str]:
    """Yield each label, with its values if they are fixed."""
    for label in getattr(family, "_labelnames", ()):
        values = dict.fromkeys(sample.labels.get(label, "") for sample in family.samples)
        yield f"`{label}`" + (": " if values else "") + ", ".join(f"`{one}`" for one in values)


# Exports of a hub


def export_format() -> str:
    """Return a table of the fields of each record."""
    parts = [
        "# The format of an export",
        "`rsnotify hub export` writes lines of JSON, each an object with a `type`. Positions are"
        " those of the store that was exported, and an import ignores them. It also ignores"
        " changes (`whole` is false), which hubs of version 0.2 exported. Datetimes have a time"
        f" zone. A hub ignores unknown fields, and refuses a version later than {VERSION}.",
    ]
    records = (ExportHeader, ExportedSubscription, ExportedBroker, ExportedFragment, ExportEnd)
    for record in records:
        hints = get_type_hints(record, include_extras=True)
        rows = [
            (f"`{field.encode_name}`", type_name(hints[field.name])) for field in fields(record)
        ]
        parts += [
            f"## {record.__struct_config__.tag}",
            inspect.getdoc(record) or "",
            _table(("field", "type"), rows),
        ]
    return "\n\n".join(parts)


# The rules of the validator


def validation_rules() -> str:
    """Return tables of the rules of `rsnotify validate`."""
    apart = {rule.id for rule in (*DOCUMENT_RULES, *VALUE_RULES, *TREE_RULES)}
    parts = {
        "Rules on every document": DOCUMENT_RULES,
        "Rules on values and links": VALUE_RULES,
        "Rules on each kind of document": [r for r in RULES.values() if r.id not in apart],
        "Rules between documents, and on packages": TREE_RULES,
    }
    return "\n\n".join(
        [
            "# Rules of the validator",
            "The rules of `rsnotify validate`. An error breaks a MUST, a warning a SHOULD.",
            *(f"## {title}\n\n{_rules(rules)}" for title, rules in parts.items()),
        ]
    )


def _rules(rules: Iterable[Rule]) -> str:
    return _table(
        ("rule", "section", "severity", "what is wrong, and what to do"),
        [(f"`{one.id}`", one.section, str(one.severity), one.sentence) for one in rules],
    )


def hub_checks() -> str:
    """Return a table of the checks of `rsnotify-hub-check`."""
    rows = [
        (f"`{one.name}`", f"§{one.section}", str(one.level), one.title) for one in hub_check_run.ALL
    ]
    about = (
        "The checks of `rsnotify-hub-check`, with the sections of the W3C Recommendation WebSub."
    )
    table = _table(("check", "section", "level", "requirement"), rows)
    return f"# Checks of a hub\n\n{about}\n\n{table}"


# The capacity of a cluster


def capacity() -> str:
    """Return what was measured of a cluster, and what audiences need by these figures."""
    figures = cluster_capacity.recorded()
    return "\n\n".join(
        [
            "# Capacity of a cluster",
            "[Past one machine](../scaling.md#capacity) draws the conclusions.",
            "## What was measured",
            cluster_capacity.MEASURED,
            cluster_capacity.measured(figures),
            "## Beside SQLite, in the same run",
            cluster_capacity.compared(figures),
            "## What an audience needs",
            cluster_capacity.ASSUMED,
            cluster_capacity.tables(figures),
        ]
    )


#: The function of each page, by its path.
PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/command-line.md": command_line,
    "docs/reference/configuration.md": configuration,
    "docs/reference/admin-api.md": admin_api,
    "docs/reference/metrics.md": metrics,
    "docs/reference/export.md": export_format,
    "docs/reference/validation-rules.md": validation_rules,
    "docs/reference/hub-checks.md": hub_checks,
    "docs/reference/capacity.md": capacity,
}
