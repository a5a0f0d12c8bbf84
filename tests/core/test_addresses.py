"""Which addresses a stranger may make us dial; `tests/security/addresses.toml` has single ones."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from rsnotify.runtime.dialing import refusal


def test_what_is_no_ip_address_is_refused() -> None:
    assert refusal("public.example")


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
