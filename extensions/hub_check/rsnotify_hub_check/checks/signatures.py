"""Authenticated content distribution (WebSub §7.1)."""

from __future__ import annotations

import hmac

from rsnotify_hub_check.callback import ReceivedDelivery
from rsnotify_hub_check.hub_under_test import HubUnderTest
from rsnotify_hub_check.outcomes import RequirementLevel, expect
from rsnotify_hub_check.registry import check

SIGNATURE = "X-Hub-Signature"

#: The recognised names (WebSub §7.1.1).
_METHODS = ("sha1", "sha256", "sha384", "sha512")


def is_signed(delivery: ReceivedDelivery, secret: str) -> bool:
    method, _, digest = delivery.headers.get(SIGNATURE, "").partition("=")
    if method not in _METHODS:
        return False
    expected = hmac.new(secret.encode(), delivery.body, method).hexdigest()
    return hmac.compare_digest(digest.lower().encode(), expected.encode())


@check("7.1", RequirementLevel.MUST, 101)
async def deliveries_are_signed_with_the_secret(hub: HubUnderTest) -> None:
    """With a secret, a delivery has an HMAC of its body, by a recognised method."""
    await _expect_signed(hub, "a secret of this check")


@check("7.1", RequirementLevel.SHOULD)
async def the_signature_is_at_least_sha256(hub: HubUnderTest) -> None:
    """The method is not SHA-1 (§8.3)."""
    topic, callback = await hub.subscribed(secret="a secret of this check")
    header = (await hub.expect_delivery(topic, callback)).headers.get(SIGNATURE, "")
    method = header.partition("=")[0]
    expect(method in _METHODS[1:], f"the method is {method!r}")


@check("7", RequirementLevel.MUST, 100)
async def without_a_secret_there_is_no_signature(hub: HubUnderTest) -> None:
    """Without a secret, a delivery has no signature."""
    topic, callback = await hub.subscribed()
    delivery = await hub.expect_delivery(topic, callback)
    expect(SIGNATURE not in delivery.headers, "there is a signature")


@check("5.1", RequirementLevel.MUST)
async def a_secret_of_199_bytes_is_accepted(hub: HubUnderTest) -> None:
    """A secret may have any length under 200 bytes."""
    await _expect_signed(hub, "s" * 199)


@check("5.1", RequirementLevel.MUST)
async def a_secret_is_utf8(hub: HubUnderTest) -> None:
    """Signatures use the UTF-8 bytes of a secret that is not ASCII."""
    await _expect_signed(hub, "a sécret of π & 世界 + %41")


@check("5.1", RequirementLevel.SHOULD)
async def a_secret_of_200_bytes_is_refused(hub: HubUnderTest) -> None:
    """A secret of 200 bytes is an error, even if it has fewer characters."""
    for secret in ("s" * 200, "é" * 100):
        response = await hub.request("subscribe", hub.topic(), hub.callback(), secret=secret)
        expect(400 <= response.status < 500, f"the hub answers {response}, not 4xx")


async def _expect_signed(hub: HubUnderTest, secret: str) -> None:
    topic, callback = await hub.subscribed(secret=secret)
    delivery = await hub.expect_delivery(topic, callback)
    header = delivery.headers.get(SIGNATURE)
    expect(header is not None, f"there is no {SIGNATURE}")
    expect(is_signed(delivery, secret), f"{header!r} is not an HMAC of the body")
