"""Responses to subscription requests (WebSub §5.1.2), and denials (§5.2)."""

from __future__ import annotations

from rsnotify_hub_check.callback import decline
from rsnotify_hub_check.hub_under_test import HubResponse, HubUnderTest, request_form
from rsnotify_hub_check.outcomes import Inconclusive, RequirementLevel, expect
from rsnotify_hub_check.registry import check


@check("5.1.2", RequirementLevel.MUST)
async def the_answer_does_not_wait_for_the_verification(hub: HubUnderTest) -> None:
    """The hub answers 202 before the callback answers the verification."""
    topic, callback = hub.topic(), hub.callback()
    callback.open.clear()
    try:
        (await hub.request("subscribe", topic, callback)).expect_accepted()
    finally:
        callback.open.set()


@check("5.1.2", RequirementLevel.MUST)
async def the_answer_does_not_depend_on_the_verification(hub: HubUnderTest) -> None:
    """The hub answers 202 even if the verification is going to fail."""
    refuses, hangs_up = hub.callback(), hub.callback()
    refuses.reply = decline
    hangs_up.drops = True
    for callback in (refuses, hangs_up):
        (await hub.request("subscribe", hub.topic(), callback)).expect_accepted()


@check("5.1.2", RequirementLevel.MUST)
async def unsubscribing_what_is_unknown_is_accepted(hub: HubUnderTest) -> None:
    """The hub answers an unsubscription with 202, whatever the result of its verification."""
    (await hub.request("unsubscribe", hub.topic(), hub.callback())).expect_accepted()


def _refuses(name: str, rule: str, change: dict[str, str | None]) -> None:
    """Register the check that a request with one error is refused."""

    @check("5.1.2", RequirementLevel.MUST, name=name, title=rule)
    async def run(hub: HubUnderTest) -> None:
        await _refused(hub, change)


async def _refused(hub: HubUnderTest, change: dict[str, str | None]) -> HubResponse:
    fields = {**request_form("subscribe", hub.topic().url, hub.callback()), **change}
    response = await hub.post({name: value for name, value in fields.items() if value is not None})
    expect(400 <= response.status < 600, f"the hub answers {response}, not 4xx")
    return response


_refuses("a_missing_mode_is_refused", "A request without hub.mode is an error.", {"hub.mode": None})
_refuses("a_wrong_mode_is_refused", "An unknown hub.mode is an error.", {"hub.mode": "listen"})
_refuses(
    "a_missing_topic_is_refused", "A request without hub.topic is an error.", {"hub.topic": None}
)
_refuses(
    "a_missing_callback_is_refused",
    "A request without hub.callback is an error.",
    {"hub.callback": None},
)
_refuses(
    "a_callback_that_is_no_url_is_refused",
    "A hub.callback that is not an http(s) URL is an error.",
    {"hub.callback": "not a URL"},
)


@check("5.1.2", RequirementLevel.SHOULD)
async def errors_are_described_in_plain_text(hub: HubUnderTest) -> None:
    """An error has a description in plain text."""
    response = await _refused(hub, {"hub.callback": None})
    expect(response.content_type == "text/plain", f"the type is {response.content_type}")
    expect(response.text.strip(), "the error has no description")


@check("5.2", RequirementLevel.MUST)
async def a_denial_is_told(hub: HubUnderTest) -> None:
    """The hub reports a denied subscription to the callback, with hub.mode=denied."""
    if hub.settings.denied_topic is None:
        raise Inconclusive("name a topic that this hub denies (--denied-topic)")
    topic, callback = hub.topic(), hub.callback("foo=bar")
    topic.url = hub.settings.denied_topic
    denial = await hub.subscribe(topic, callback)
    mode = denial.appended.get("hub.mode")
    expect(mode == "denied", f"hub.mode is {mode!r}, not 'denied'")
    expect(denial.appended.get("hub.topic") == topic.url, "hub.topic is not the topic")
    expect(denial.target.startswith(callback.target + "&hub."), "the callback's query is changed")
