"""Which addresses a stranger may make us dial."""

from __future__ import annotations

import pytest

from rsnotify.addresses import refusal


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "172.32.0.1"])
def test_public_addresses_are_dialled(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.0.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255",
        "192.168.1.1", "169.254.169.254", "100.64.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "192.0.2.1", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
        "2001:db8::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "100::1", "5f00::1",
        "not an address", "",
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_a_reason(address: str) -> None:
    assert refusal(address)


def test_a_public_ipv4_address_is_public_in_ipv6_clothes_too() -> None:
    assert refusal("::ffff:8.8.8.8") is None
