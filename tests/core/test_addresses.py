"""Which addresses a stranger may make us dial."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.runtime.addresses import refusal


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
        "168.63.129.16", "2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:8.8.8.8",
        "not an address", "",
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_a_reason(address: str) -> None:
    assert refusal(address)


def test_a_public_ipv4_address_is_public_in_ipv6_clothes_too() -> None:
    assert refusal("::ffff:8.8.8.8") is None


PRIVATE = [
    IPv4Network(network)
    for network in ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
                    "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
]  # fmt: skip
#: Where an IPv6 address holds an IPv4 address: the bits before it, and those after it.
CLOTHES = {
    "mapped (RFC 4291 §2.5.5.2)": ("::ffff:0:0", 0),
    "compatible (RFC 4291 §2.5.5.1)": ("::", 0),
    "translated (RFC 2765 §2.1)": ("::ffff:0:0:0", 0),
    "NAT64 (RFC 6052 §2.1)": ("64:ff9b::", 0),
    "local NAT64 (RFC 8215)": ("64:ff9b:1::", 0),
    "6to4 (RFC 3056 §2)": ("2002::", 80),
    "Teredo's server (RFC 4380 §4)": ("2001::", 64),
    "ISATAP (RFC 5214 §6.1)": ("2606:4700::5efe:0:0", 0),
    "link-local ISATAP": ("fe80::5efe:0:0", 0),
}

private_addresses = st.sampled_from(PRIVATE).flatmap(
    lambda network: st.integers(0, network.num_addresses - 1).map(lambda number: network[number])
)


@given(private_addresses, st.sampled_from(sorted(CLOTHES)), st.sampled_from(["", "%eth0", "%1"]))
def test_no_private_address_is_dialled_in_whatever_clothes(
    address: IPv4Address, clothes: str, zone: str
) -> None:
    prefix, shift = CLOTHES[clothes]
    dressed = IPv6Address(int(IPv6Address(prefix)) | int(address) << shift)
    assert refusal(str(address))
    for spelling in (str(dressed), dressed.exploded, str(dressed).upper()):
        assert refusal(spelling + zone), (clothes, spelling)


@given(st.integers(0, 2**128 - 1))
def test_of_ipv6_only_the_internet_s_own_unicast_is_dialled(number: int) -> None:
    address = IPv6Address(number)
    if refusal(str(address)) is None:
        assert number >> 125 == 1 or address.ipv4_mapped is not None
