"""Leases (WebSub §5.1, §5.3.1, §8.2)."""

from __future__ import annotations

from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import Inconclusive, RequirementBroken, RequirementLevel, expect
from rsnotify_hub_check.registry import check

_DAY = 86_400


@check("5.3.1", RequirementLevel.MUST)
async def no_lease_is_perpetual(bench: HubUnderTest) -> None:
    """A lease ends, however long the one that was asked for."""
    for asked in ("4000000000", "999999999999"):
        topic, callback = bench.topic(), bench.callback()
        response = await bench.ask("subscribe", topic, callback, lease_seconds=asked)
        if response.status != 202:
            continue  # to refuse it is another way to grant none
        lease = _lease((await bench.verification(callback)).appended)
        expect(lease < 3650 * _DAY, f"a lease of {lease} s is granted")


@check("8.2", RequirementLevel.SHOULD)
async def leases_are_short(bench: HubUnderTest) -> None:
    """The lease that is granted where none was asked for is 10 days or less."""
    lease = _lease((await bench.subscribe(bench.topic(), bench.callback())).appended)
    expect(0 < lease <= 10 * _DAY, f"a lease of {lease} s is granted")


@check("5.1", RequirementLevel.MAY)
async def a_lease_is_respected(bench: HubUnderTest) -> None:
    """The lease that was asked for is granted."""
    verification = await bench.subscribe(bench.topic(), bench.callback(), lease_seconds="7200")
    lease = _lease(verification.appended)
    expect(lease == 7200, f"{lease} s are granted instead of 7200")


@check("5.3.1", RequirementLevel.MUST)
async def a_lease_is_enforced(bench: HubUnderTest) -> None:
    """Nothing is delivered once the lease has ended."""
    topic, callback = bench.topic(), bench.callback()
    asked = await bench.ask("subscribe", topic, callback, lease_seconds="1")
    if asked.status != 202:
        raise Inconclusive(f"the hub refuses a lease of one second: {asked}")
    lease = _lease((await bench.verification(callback)).appended)
    if lease > bench.settings.patience:
        raise Inconclusive(f"the hub grants {lease} s instead of 1, too long to wait for")
    await bench.ends.until(lambda: False, lease)
    await bench.ended(topic, callback, "it is delivered to after its lease")


@check("5.1", RequirementLevel.MUST)
async def a_renewal_extends_the_lease(bench: HubUnderTest) -> None:
    """A renewal gives a new lease, measured from its own verification."""
    topic, callback = bench.topic(), bench.callback()
    first = _lease((await bench.subscribe(topic, callback, lease_seconds="3600")).appended)
    second = _lease((await bench.subscribe(topic, callback, lease_seconds="7200")).appended)
    expect(second >= first, f"the renewal has {second} s, less than the {first} s before")


def _lease(appended: dict[str, str]) -> int:
    text = appended.get("hub.lease_seconds", "")
    if not (text.isascii() and text.isdigit()):
        raise RequirementBroken(f"hub.lease_seconds is {text!r}, not a number")
    return int(text)
