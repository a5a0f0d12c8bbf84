"""Leases (WebSub §5.1, §5.3.1, §8.2)."""

from __future__ import annotations

from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import Inconclusive, RequirementBroken, RequirementLevel, expect
from rsnotify_hub_check.registry import check

_DAY = 86_400


@check("5.3.1", RequirementLevel.MUST)
async def no_lease_is_perpetual(hub: HubUnderTest) -> None:
    """A lease ends, however long the requested one is."""
    for requested in ("4000000000", "999999999999"):
        topic, callback = hub.topic(), hub.callback()
        response = await hub.request("subscribe", topic, callback, lease_seconds=requested)
        if response.status != 202:
            continue  # a refusal is allowed, too
        lease = _lease((await hub.wait_for_verification(callback)).appended)
        expect(lease < 3650 * _DAY, f"a lease of {lease} s is granted")


@check("8.2", RequirementLevel.SHOULD)
async def leases_are_short(hub: HubUnderTest) -> None:
    """The lease that is granted without a request for one is 10 days or less."""
    lease = _lease((await hub.subscribe(hub.topic(), hub.callback())).appended)
    expect(0 < lease <= 10 * _DAY, f"a lease of {lease} s is granted")


@check("5.1", RequirementLevel.MAY)
async def a_lease_is_respected(hub: HubUnderTest) -> None:
    """The requested lease is granted."""
    verification = await hub.subscribe(hub.topic(), hub.callback(), lease_seconds="7200")
    lease = _lease(verification.appended)
    expect(lease == 7200, f"{lease} s are granted instead of 7200")


@check("5.3.1", RequirementLevel.MUST)
async def a_lease_is_enforced(hub: HubUnderTest) -> None:
    """Nothing is delivered once the lease has ended."""
    topic, callback = hub.topic(), hub.callback()
    response = await hub.request("subscribe", topic, callback, lease_seconds="1")
    if response.status != 202:
        raise Inconclusive(f"the hub refuses a lease of one second: {response}")
    lease = _lease((await hub.wait_for_verification(callback)).appended)
    if lease > hub.settings.patience:
        raise Inconclusive(f"the hub grants {lease} s instead of 1, which is too long to wait for")
    await hub.endpoints.until(lambda: False, lease)
    await hub.expect_ended(topic, callback, "the callback receives a delivery after its lease")


@check("5.1", RequirementLevel.MUST)
async def a_renewal_extends_the_lease(hub: HubUnderTest) -> None:
    """A renewal grants a new lease, which begins with its own verification."""
    topic, callback = hub.topic(), hub.callback()
    first = _lease((await hub.subscribe(topic, callback, lease_seconds="3600")).appended)
    second = _lease((await hub.subscribe(topic, callback, lease_seconds="7200")).appended)
    expect(second >= first, f"the renewal has {second} s, less than the {first} s before")


def _lease(appended: dict[str, str]) -> int:
    text = appended.get("hub.lease_seconds", "")
    if not (text.isascii() and text.isdigit()):
        raise RequirementBroken(f"hub.lease_seconds is {text!r}, not a number")
    return int(text)
