"""The addresses that may use the key of a run."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from accept.core.runner.logins import _LINE_LIMIT, _parts, exact

ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(st.lists(ADDRESSES, max_size=40))
def test_the_addresses_of_the_hosts_are_admitted_and_no_others(addresses: list[str]) -> None:
    admitted = [address for network in exact(addresses) for address in network]

    assert sorted(map(str, admitted)) == sorted(set(addresses))


def test_a_host_that_reports_a_network_or_a_name_admits_nobody() -> None:
    assert exact(["10.0.0.0/8", "0.0.0.0/0", "::/0", "*", "h1", "", "10.0.0.7\n*"]) == ()


def test_a_link_local_address_counts_without_its_interface() -> None:
    assert exact(["fe80::1%eth0"]) == (ipaddress.ip_network("fe80::1"),)


def test_neighboring_addresses_of_a_large_run_need_few_networks() -> None:
    assert [str(n) for n in exact(f"10.0.{i // 256}.{i % 256}" for i in range(1024))] == [
        "10.0.0.0/22"
    ]


@given(st.integers(min_value=1, max_value=2000))
def test_a_list_that_is_too_long_for_one_line_continues_in_others(hosts: int) -> None:
    # Every other address: these cannot be joined.
    networks = exact(f"10.0.{2 * i // 256}.{2 * i % 256}" for i in range(hosts))

    parts = list(_parts(networks))

    assert ",".join(parts).split(",") == [str(network) for network in networks]
    assert all(len(part) <= _LINE_LIMIT for part in parts)
