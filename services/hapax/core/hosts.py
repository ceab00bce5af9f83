"""Addresses that clients come from."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def plain_host(text: str) -> str:
    """One spelling for each address: bindings, quotas and connections are compared by it. An IPv4 address that arrives
    over IPv6 is the IPv4 address. Text that is no address stays as it is, and matches no connection."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
