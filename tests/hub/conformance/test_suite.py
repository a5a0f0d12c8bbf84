"""The conformance suite itself: a hub that conforms passes, and one that breaks a rule does not."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree

import aiohttp
import pytest
from typer.testing import CliRunner

import rsnotify_hub_check
from rsnotify.errors import WrongOption
from rsnotify.runtime.command_check_reports import Outcome
from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub_check.hub_under_test import CheckSettings, ConformanceCheck, HubUnderTest
from rsnotify_hub_check.outcomes import (
    CheckResult,
    CheckVerdict,
    RequirementBroken,
    RequirementLevel,
)
from rsnotify_hub_check.run import (
    ALL,
    app,
    badge_of,
    conforms,
    format_result,
    format_summary,
    report_checks,
    run_checks,
)
from rsnotify_hub_check.simulated_endpoints import serve_endpoints
from tests.hub.conformance.small_hub import DENIED, small_hub
from tests.waiting import PATIENCE

#: Faults of a hub, and the checks that must fail for each.
FAULTS = {
    "200": ["a-subscription-is-accepted", "the-answer-does-not-depend-on-the-verification"],
    "no secrets": ["a-secret-is-accepted"],
    "strict parameters": ["unknown-parameters-are-ignored"],
    "raw names": ["escapes-in-the-form-are-decoded"],
    "mode first": ["the-order-of-parameters-does-not-matter"],
    "never unsubscribes": ["unsubscribing-ends-deliveries"],
    "lease of unsubscriptions": ["a-lease-is-ignored-in-an-unsubscription"],
    "key without query": ["callbacks-of-one-topic-are-told-apart"],
    "key without topic": ["topics-of-one-callback-are-told-apart"],
    "drops queries": ["the-query-of-a-callback-is-kept"],
    "overwrites": ["overlapping-names-are-not-overwritten"],
    "normalises": ["the-callback-is-used-exactly-as-it-was-sent"],
    "query in the body": ["a-query-is-not-sent-as-the-body"],
    "verifies first": ["the-answer-does-not-wait-for-the-verification"],
    "tells the outcome": ["the-answer-does-not-depend-on-the-verification"],
    "knows the known only": ["unsubscribing-what-is-unknown-is-accepted"],
    "anything goes": [
        "a-missing-mode-is-refused",
        "a-wrong-mode-is-refused",
        "a-missing-topic-is-refused",
        "a-missing-callback-is-refused",
        "a-callback-that-is-no-url-is-refused",
    ],
    "json errors": ["errors-are-described-in-plain-text"],
    "denies in silence": ["a-denial-is-told"],
    "no lease told": ["a-subscription-is-verified"],
    "no topic told": ["an-unsubscription-is-verified"],
    "one challenge": ["challenges-are-random-and-used-once"],
    "only 200 confirms": ["any-2xx-confirms"],
    "any status confirms": ["a-404-does-not-confirm", "a-server-error-does-not-confirm"],
    "follows verifications": ["a-redirect-does-not-confirm"],
    "any body confirms": ["an-empty-answer-does-not-confirm", "another-challenge-does-not-confirm"],
    "contains": ["a-challenge-among-other-text-does-not-confirm"],
    "no renewals": ["a-renewal-is-accepted"],
    "any number": ["a-renewal-is-no-second-subscription"],
    "keeps the secret": [
        "a-renewal-replaces-the-secret",
        "a-renewal-without-a-secret-ends-signatures",
    ],
    "forgets while pending": [
        "a-pending-renewal-changes-nothing",
        "a-renewal-that-fails-changes-nothing",
    ],
    "unsubscribes at once": ["an-unsubscription-that-fails-changes-nothing"],
    "any lease": ["no-lease-is-perpetual"],
    "a long default": ["leases-are-short"],
    "a fixed lease": ["a-lease-is-respected"],
    "never expires": ["a-lease-is-enforced"],
    "one lease": ["a-renewal-extends-the-lease"],
    "one update": ["every-update-is-delivered"],
    "no ping by hub.url": ["a-ping-by-url-is-understood"],
    "no ping by hub.topic": ["a-ping-by-topic-is-understood"],
    "sends the same again": ["unchanged-content-is-not-delivered-again"],
    "one type": [
        "html-arrives-as-it-is",
        "plain-text-arrives-as-it-is",
        "json-arrives-as-it-is",
        "xml-arrives-as-it-is",
        "octets-arrive-as-they-are",
    ],
    "no links": ["a-delivery-links-to-its-topic-and-hub"],
    "two links": ["the-links-are-one-header"],
    "cuts": ["the-whole-of-a-large-topic-is-delivered"],
    "signs nothing": ["deliveries-are-signed-with-the-secret"],
    "sha1": ["the-signature-is-at-least-sha256"],
    "always signs": ["without-a-secret-there-is-no-signature"],
    "short secrets": ["a-secret-of-199-bytes-is-accepted"],
    "secrets in ASCII": ["a-secret-is-utf8"],
    "long secrets": ["a-secret-of-200-bytes-is-refused"],
    "only 200 is a success": ["any-2xx-is-a-success"],
    "reads answers": ["the-body-of-an-answer-is-ignored"],
    "follows deliveries": ["a-redirect-is-a-failure"],
    "one strike": ["a-failure-does-not-end-the-subscription"],
    "no retries": ["a-failed-delivery-is-tried-again"],
    "ignores 410": ["a-410-ends-the-subscription"],
}


#: Checks that leave subscriptions of every kind.
LEAVING = [
    "a-renewal-is-accepted",
    "topics-of-one-callback-are-told-apart",
    "callbacks-of-one-topic-are-told-apart",
    "overlapping-names-are-not-overwritten",
    "a-404-does-not-confirm",
    "a-failure-does-not-end-the-subscription",
]


def settings(hub: str, patience: float, quiet: float = 0.3, **more: float) -> CheckSettings:
    given = {"settle": patience / 5, **more}
    return CheckSettings(
        hub=hub,
        patience=patience,
        quiet=quiet,
        **given,
        retry=patience,
        denied_topic=DENIED,
    )


async def results_of(
    hub: str, names: list[str], patience: float, quiet: float = 0.3, **more: float
) -> list[CheckResult]:
    chosen = [check for check in ALL if not names or check.name in names]
    async with serve_endpoints(hub) as endpoints:
        found = run_checks(chosen, settings(hub, patience, quiet, **more), endpoints, at_once=8)
        return [result async for result in found]


@pytest.mark.parametrize("peculiarity", ["", "publishes to subscribers only"])
async def test_a_hub_that_conforms_passes(peculiarity: str):
    async with small_hub(peculiarity) as hub:
        results = await results_of(hub, [], PATIENCE)
    assert [(each.name, each.reason) for each in results if each.verdict != "passed"] == []
    assert len(results) == len(ALL)


async def test_a_hub_that_never_accepts_publications_cannot_be_checked():
    async with small_hub("publishes nothing") as hub:
        with pytest.raises(
            RequirementBroken,
            match="the hub answers a publication with 400 'nothing is published here'",
        ):
            await results_of(hub, [], PATIENCE, settle=1)


async def test_a_delivery_in_transit_when_a_subscription_ends_is_not_an_error():
    async with small_hub("in pairs") as hub:
        [found] = await results_of(hub, ["a-410-ends-the-subscription"], PATIENCE)
    assert (found.verdict, found.reason) == ("passed", "")


async def test_every_broken_requirement_is_found():
    async def missed(fault: str, patience: float, quiet: float) -> list[str]:
        async with small_hub(fault) as hub:
            try:
                results = await results_of(hub, FAULTS[fault], patience, quiet)
            except RequirementBroken:  # it does not even answer in time
                return FAULTS[fault]
        assert len(results) == len(FAULTS[fault])
        return [each.name for each in results if each.verdict is not CheckVerdict.FAILED]

    found = await asyncio.gather(*(missed(fault, 1, 0.3) for fault in FAULTS))
    # A slow machine may be too late; it gets a second attempt with longer timeouts.
    for fault, names in zip(FAULTS, found, strict=True):
        assert names == [] or await missed(fault, 20, 5) == [], fault


async def test_an_unexpected_error_in_a_check_does_not_prevent_other_results():
    async def run(hub: HubUnderTest) -> None:
        raise ValueError("unexpected")

    odd = ConformanceCheck("odd", "7", RequirementLevel.MUST, (), "A rule.", run)
    (right,) = (check for check in ALL if check.name == "a-secret-of-200-bytes-is-refused")
    async with small_hub() as hub, serve_endpoints(hub) as endpoints:
        found = run_checks([odd, right], settings(hub, PATIENCE), endpoints, at_once=2)
        first, second = [result async for result in found]
    assert (first.verdict, second.verdict) == (CheckVerdict.FAILED, CheckVerdict.PASSED)
    assert first.reason == "the check raised an error: ValueError: unexpected"


async def test_no_subscriptions_of_the_suite_remain_at_the_hub(tmp_path: Path):
    configuration = load_configuration(
        None, port=0, data=str(tmp_path), allow_private_addresses=True
    )
    async with serve(configuration) as url, aiohttp.ClientSession() as session:
        await results_of(url + "websub", LEAVING, PATIENCE)
        async with asyncio.timeout(PATIENCE):  # the hub forgets them once they are confirmed
            while await _total(session, url):
                pass


async def _total(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url + "admin/subscriptions") as response:
        total: int = (await response.json())["total"]
        return total


def test_every_check_fails_for_some_faulty_hub():
    assert {check.name for check in ALL} == {name for names in FAULTS.values() for name in names}


def result(level: RequirementLevel, verdict: CheckVerdict) -> CheckResult:
    return CheckResult(
        name="a-check",
        section="7",
        level=level,
        rocks=(100,),
        title="A rule.",
        verdict=verdict,
        reason="why" if verdict is not CheckVerdict.PASSED else "",
        seconds=0.1,
    )


def test_a_hub_conforms_if_it_meets_every_must():
    broken = {level: [result(level, CheckVerdict.FAILED)] for level in RequirementLevel}
    assert not conforms(broken[RequirementLevel.MUST])
    assert conforms(broken[RequirementLevel.SHOULD])
    assert not conforms(broken[RequirementLevel.SHOULD], strict=True)
    assert conforms(broken[RequirementLevel.MAY], strict=True)
    undecided = [result(RequirementLevel.MUST, CheckVerdict.INCONCLUSIVE)]
    assert conforms(undecided, strict=True)
    must, should = broken[RequirementLevel.MUST], broken[RequirementLevel.SHOULD]
    for results, strict, message in (
        (must + should, False, "breaks 1 requirement"),
        (must + should, True, "breaks 2 requirements"),
        (should, False, "conforms"),
        (undecided, False, "conforms, 1 undecided"),
    ):
        assert badge_of(results, strict=strict).message == message
    outcomes = [
        one.outcome for one in report_checks("hub", [*must, *should, *undecided], strict=False)
    ]
    assert outcomes == [Outcome.FAILED, Outcome.SKIPPED, Outcome.SKIPPED]


def test_a_line_has_the_requirement_the_verdict_and_the_reason():
    text = format_result(result(RequirementLevel.MUST, CheckVerdict.FAILED))
    assert text.startswith("FAILED  MUST")
    assert text.endswith("a-check [100]: A rule.\n        why")
    assert format_result(result(RequirementLevel.MAY, CheckVerdict.FAILED)).startswith("no ")
    assert (
        format_summary([result(RequirementLevel.MUST, CheckVerdict.PASSED)])
        == "MUST 1 of 1, SHOULD 0 of 0, MAY 0 of 0"
    )


async def command(*arguments: str) -> tuple[int, str, str]:
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    return found.exit_code, found.stdout, found.stderr


async def test_the_command_prints_all_results_as_json_and_writes_them_for_ci(tmp_path: Path):
    junit = tmp_path / "hub.xml"
    only = ("--only", "199", "--only", "a-404", "--quiet", "0.1")
    async with small_hub("short secrets") as hub:
        code, out, err = await command(hub, "--json", *only, "--junit", str(junit))
    (suite,) = ElementTree.parse(junit).getroot()
    assert (suite.get("name"), suite.get("failures")) == (hub, "1")
    failed = {case.get("name"): len(case) for case in suite.iter("testcase")}
    assert failed == {"a-secret-of-199-bytes-is-accepted": 1, "a-404-does-not-confirm": 0}
    report = json.loads(out)
    assert (code, err, report["hub"], report["conforms"]) == (1, "", hub, False)
    assert {each["name"]: each["verdict"] for each in report["checks"]} == {
        "a-secret-of-199-bytes-is-accepted": "failed",
        "a-404-does-not-confirm": "passed",
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["http://127.0.0.1:1/"], "cannot be checked"),
        (["http://127.0.0.1:1/", "--only", "no such"], "no check"),
        (["http://127.0.0.1:1/", "--listen", "here"], "HOST:PORT"),
        (["ftp://127.0.0.1/"], "http"),
    ],
)
async def test_a_hub_that_cannot_be_checked_ends_with_one_sentence_and_code_2(
    arguments: list[str], reason: str
):
    code, out, err = await command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


@pytest.mark.parametrize("more", [["hub.png"], ["hub.svg", "--only", "a-404"]])
def test_a_badge_is_a_picture_or_json_and_stands_for_all_checks(more: list[str]):
    found = CliRunner().invoke(app, ["http://127.0.0.1:1/", "--badge", *more])
    assert isinstance(found.exception, WrongOption)


def test_the_suite_knows_nothing_of_this_hub():
    for path in Path(rsnotify_hub_check.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rsnotify_hub"):
                assert (node.module or "").startswith("rsnotify_hub_check"), path
