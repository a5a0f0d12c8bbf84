"""deploy/prometheus, deploy/grafana and docs/runbook.md: what they name exists, and alerts fire."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rsnotify.runtime.status_endpoints import MetricsText
from rsnotify_hub.application import JsonLogFormatter
from rsnotify_hub.metrics import metric_families
from rsnotify_publisher import Publisher, SourceMetrics
from rsnotify_subscriber import FollowMetrics, Subscriber
from tests.hub.readings import IN_A_CLUSTER, hub_readings
from tests.reader import ROOT

PROMETHEUS = ROOT / "deploy/prometheus"
ROLES = ("hub", "source", "follow")
RUNBOOK = ROOT / "docs/runbook.md"
_NAME = re.compile(r"\b(?:rsnotify_(?:hub|source|follow)|process)_\w+")
#: A hub as a label of a Source.
_HUB = '{hub="ws://hub.example/ws"}'
#: What fires each alert: series with their values, in the notation of promtool, one a minute.
FIRING = {
    "RsnotifyHubDown": {"up": "0x60"},
    "RsnotifyHubNothingPublished": {
        "rsnotify_hub_topics": "3x60",
        "rsnotify_hub_fragments_total": "5x60",
    },
    "RsnotifyHubWritesWait": {"rsnotify_hub_commit_queue": "101x60"},
    "RsnotifyHubFault": {'rsnotify_hub_refused_total{code="fault"}': "0x50 1x10"},
    "RsnotifyHubSubscriptionLags": {'rsnotify_hub_lag_seconds_worst{rank="1"}': "1000x60"},
    "RsnotifyHubDeliveriesFail": {
        'rsnotify_hub_deliveries_total{way="websub",outcome="failed"}': "0+60x60",
        'rsnotify_hub_deliveries_total{way="websub",outcome="delivered"}': "0+50x60",
    },
    "RsnotifyHubDeliveriesGivenUp": {
        'rsnotify_hub_deliveries_total{way="websub",outcome="given-up"}': "0x50 1x10"
    },
    "RsnotifyHubSubscribersCutOff": {
        'rsnotify_hub_deliveries_total{way="websocket",outcome="cut-off"}': "0+1x60"
    },
    "RsnotifyHubBrokerBehind": {"rsnotify_hub_mqtt_topics_behind": "1x60"},
    "RsnotifyHubFilesShort": {"process_open_fds": "91x60", "process_max_fds": "100x60"},
    "RsnotifyHubNodeCutOff": {"rsnotify_hub_nats_connected": "0x60"},
    "RsnotifyHubShardsFree": {"rsnotify_hub_shards_free": "1x60"},
    "RsnotifyHubShardsLost": {'rsnotify_hub_shards_moved_total{how="lost"}': "0+1x60"},
    "RsnotifyHubNodeBehind": {"rsnotify_hub_stream_behind": "1001x60"},
    "RsnotifyHubCopiesBehind": {"rsnotify_hub_stream_copies_behind": "1x60"},
    "RsnotifySourceDown": {"up": "0x60"},
    "RsnotifySourceUnpublished": {"rsnotify_source_sets_published": "2x60"},
    "RsnotifySourceHubLost": {f"rsnotify_source_hub_up{_HUB}": "0x60"},
    "RsnotifySourceDiskSlow": {"rsnotify_source_commit_seconds_sum": "0+60x60"},
    "RsnotifyFollowDown": {"up": "0x60"},
    "RsnotifyFollowNotLevel": {"rsnotify_follow_behind_seconds": "1000x60"},
    "RsnotifyFollowPolls": {"rsnotify_follow_push_up": "0x60"},
    "RsnotifyFollowLags": {
        'rsnotify_follow_lag_seconds_bucket{le="60.0"}': "0+1x60",
        'rsnotify_follow_lag_seconds_bucket{le="600.0"}': "0+60x60",
    },
    "RsnotifyFollowDiskSlow": {"rsnotify_follow_commit_seconds_sum": "0+60x60"},
}
#: A hub, a Source and a Destination that have nothing to complain about.
HEALTHY = {
    "up": "1x60",
    "rsnotify_hub_topics": "3x60",
    "rsnotify_hub_fragments_total": "0+60x60",
    "rsnotify_hub_commit_queue": "2x60",
    'rsnotify_hub_refused_total{code="fault"}': "0x60",
    'rsnotify_hub_lag_seconds_worst{rank="1"}': "3x60",
    'rsnotify_hub_deliveries_total{way="websub",outcome="failed"}': "0+1x60",
    'rsnotify_hub_deliveries_total{way="websub",outcome="delivered"}': "0+60x60",
    'rsnotify_hub_deliveries_total{way="websub",outcome="given-up"}': "2x60",
    'rsnotify_hub_deliveries_total{way="websocket",outcome="cut-off"}': "20x60",
    "rsnotify_hub_mqtt_topics_behind": "0x60",
    "rsnotify_hub_xmpp_topics_behind": "0x60",
    "process_open_fds": "30x60",
    "process_max_fds": "1000x60",
    "rsnotify_hub_nats_connected": "1x60",
    "rsnotify_hub_shards_free": "0x60",
    'rsnotify_hub_shards_moved_total{how="lost"}': "1x60",
    "rsnotify_hub_stream_behind": "0x60",
    "rsnotify_hub_stream_copies_behind": "0x60",
    "rsnotify_source_sets": "3x60",
    "rsnotify_source_sets_published": "3x60",
    f"rsnotify_source_hub_up{_HUB}": "1x60",
    "rsnotify_source_commit_seconds_sum": "0+1x60",
    "rsnotify_source_commit_seconds_count": "0+60x60",
    "rsnotify_follow_behind_seconds": "0x60",
    "rsnotify_follow_push_up": "1x60",
    'rsnotify_follow_lag_seconds_bucket{le="60.0"}': "0+60x60",
    'rsnotify_follow_lag_seconds_bucket{le="600.0"}': "0+60x60",
    'rsnotify_follow_lag_seconds_bucket{le="+Inf"}': "0+60x60",
    "rsnotify_follow_commit_seconds_sum": "0+1x60",
    "rsnotify_follow_commit_seconds_count": "0+60x60",
}


def file_of(role: str) -> Path:
    return PROMETHEUS / f"rsnotify-{role}.rules.yml"


def rules(*roles: str) -> list[dict[str, Any]]:
    groups = [
        group
        for role in roles or ROLES
        for group in yaml.safe_load(file_of(role).read_text())["groups"]
    ]
    return [rule for group in groups for rule in group["rules"]]


def exposed(tmp_path: Path) -> set[str]:
    """Return the names of all metrics; the hub is a node with everything."""
    readings = hub_readings(lags=lambda: (1.0,), **IN_A_CLUSTER)
    body = MetricsText(lambda: metric_families(readings)).answer().body
    assert isinstance(body, bytes)
    # Refusals have a series once there was one.
    names = {"rsnotify_hub_refused_total"}
    for family in text_string_to_metric_families(body.decode()):
        names.update(sample.name for sample in family.samples)
    publisher = Publisher(tmp_path / "source", "http://a.example/", hubs=["http://127.0.0.1:9/"])
    subscriber = Subscriber("http://a.example/", lambda _: None, state=tmp_path / "state")
    with publisher:
        for metrics in (SourceMetrics(publisher), FollowMetrics(subscriber)):
            names.update(sample.name for family in metrics.collect() for sample in family.samples)
    return names


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for role in ROLES:
        dashboard = json.loads((ROOT / f"deploy/grafana/rsnotify-{role}.json").read_text())
        assert "heatmap" in [panel["type"] for panel in dashboard["panels"]]
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"]


def promtool(*arguments: str | Path) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_metric_of_the_alerts_and_the_dashboards_exists(tmp_path: Path) -> None:
    exposes = exposed(tmp_path)
    for place, expression in expressions():
        names = set(_NAME.findall(expression))
        assert names or "up{" in expression, place
        assert names <= exposes, f"{place}: {names - exposes}"


def test_every_alert_has_a_section_in_the_runbook() -> None:
    sections = re.findall(r"^## (Rsnotify\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]


def test_every_alert_says_what_happened_and_what_follows() -> None:
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_prometheus_accepts_the_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", PROMETHEUS / "scrape.yml")


@pytest.mark.parametrize("role", ROLES)
def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path, role: str) -> None:
    alerts = [rule["alert"] for rule in rules(role)]

    def series(values: dict[str, str]) -> list[dict[str, str]]:
        found = []
        for name, each in values.items():
            base, _, labels = name.partition("{")
            own = f'job="rsnotify-{role}",instance="a"'
            inside = ",".join(filter(None, [labels.rstrip("}"), own]))
            found.append({"series": f"{base}{{{inside}}}", "values": each})
        return found

    def names(firing: str | None) -> list[dict[str, Any]]:
        return [
            {"expr": f'count(ALERTS{{alertname="{each}",alertstate="firing"}}) or vector(0)',
             "eval_time": "55m",
             "exp_samples": [{"labels": "{}", "value": int(each == firing)}]}
            for each in alerts
        ]  # fmt: skip

    assert set(FIRING) == {rule["alert"] for rule in rules()}
    situations: list[tuple[str | None, dict[str, str]]] = [
        (None, HEALTHY),
        *((alert, HEALTHY | FIRING[alert]) for alert in alerts),
    ]
    tests = [
        {"interval": "1m", "input_series": series(values), "promql_expr_test": names(firing)}
        for firing, values in situations
    ]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(file_of(role))], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)


def test_the_log_shipping_reads_the_fields_of_the_log_and_joins_parts_that_exist() -> None:
    parts = yaml.safe_load((ROOT / "deploy/vector/rsnotify.yaml").read_text())
    known = {*parts["sources"], *parts["transforms"]}
    for part in (*parts["transforms"].values(), *parts["sinks"].values()):
        assert {*part["inputs"]} <= known
    record = logging.makeLogRecord({"msg": "text", "levelname": "WARNING", "name": "rsnotify.hub"})
    line = json.loads(JsonLogFormatter().format(record))
    read = re.findall(r"parse_timestamp\(\.(\w+)", parts["transforms"]["fields"]["source"])
    labels = re.findall(r"\{\{ ([a-z]\w*) \}\}", str(parts["sinks"]["loki"]["labels"]))
    assert [*read, *labels] == ["time", "level"]
    assert {*read, *labels} <= line.keys()
    # The journal of systemd names a program by its file.
    (program,) = parts["sources"]["journal"]["include_matches"]["SYSLOG_IDENTIFIER"]
    for unit in (ROOT / "deploy/systemd").glob("*.service"):
        assert re.search(rf"^ExecStart=\S+/{program} ", unit.read_text(), re.MULTILINE)
