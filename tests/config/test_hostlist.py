"""Host lists as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.config.hostlist import expand
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.limits import MOST_HOSTS
from accept.core.text import folded


@pytest.mark.parametrize(
    ("texts", "hosts"),
    [
        (["a"], ["a"]),
        (["a,b, c"], ["a", "b", "c"]),
        (["b,a"], ["b", "a"]),
        (["a", "b"], ["a", "b"]),
        (["node[1-3]"], ["node1", "node2", "node3"]),
        (["node[08-10]"], ["node08", "node09", "node10"]),
        (["n[1,3,7-8]"], ["n1", "n3", "n7", "n8"]),
        (["n[1-2],m"], ["n1", "n2", "m"]),
        (["r[1-2]n[1-2]"], ["r1n1", "r1n2", "r2n1", "r2n2"]),
        (["n[1-2].example.org"], ["n1.example.org", "n2.example.org"]),
        (["10.0.0.7,fe80::1"], ["10.0.0.7", "fe80::1"]),
        ([], []),
    ],
)
def test_reads_lists_and_patterns_in_their_order(texts: list[str], hosts: list[str]) -> None:
    assert expand(texts) == tuple(hosts)


INVALID = {
    Code.HOSTLIST_SYNTAX: (
        "", " ", "a,,b", "a,", "a b", "a;b", "a/b", "$(x)", "-oProxyCommand=x", "a" * 300,
        "n[2-1]", "n[1-]", "n[-1]", "n[]", "n[a-b]", "n[1-2", "n\u00b2", f"n[{'1' * 5000}]",
        "n[1-99999999999999]",
    ),
    Code.HOSTLIST_TOO_MANY: (f"n[1-{MOST_HOSTS + 2}]", "n[1-9999]m[1-9999]"),
}  # fmt: skip


def test_refuses_invalid_lists_in_one_line_with_an_example() -> None:
    for code, texts in INVALID.items():
        for text in texts:
            with pytest.raises(BadInput) as error:
                expand([text])
            assert (error.value.code, bool(error.value.hint)) == (code, True), text
            assert "\n" not in error.value.message, text
            assert ('"]" is missing' in error.value.message) is (text == "n[1-2"), text


@pytest.mark.parametrize("text", ["node1:8", "node1:8,node2:8", "n[1-2]:4", "10.0.0.7:1"])
def test_a_number_of_slots_is_not_a_part_of_the_name(text: str) -> None:
    with pytest.raises(BadInput, match="slots") as error:
        expand([text])
    assert error.value.code is Code.HOSTLIST_SYNTAX


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("root@node[1-4]", "node[1-4]; the user: ssh.user "),
        ("[2001:db8::7]", "without brackets: 2001:db8::7"),
        ("fe80::1%eth0", "Host node1, HostName fe80::1%eth0"),
        ("node{01..04}", "node[01-04]"),
    ],
)
def test_the_form_of_another_program_leads_to_the_right_one(text: str, meant: str) -> None:
    with pytest.raises(BadInput) as error:
        expand([text])
    assert meant in error.value.hint


@pytest.mark.parametrize("texts", [["a,b,a"], ["a", "a"], ["n[1-3],n2"]])
def test_refuses_a_repeated_host(texts: list[str]) -> None:
    with pytest.raises(BadInput, match=r"(a|n2) ") as error:
        expand(texts)
    assert error.value.code is Code.HOSTLIST_DUPLICATE


class TestFiles:
    def test_have_one_host_per_line_and_comments(self, tmp_path: Path) -> None:
        (tmp_path / "hosts").write_text("# ours\na slots = 8 max_slots=9\n\n b 8 # spare\nn[1-2]\n")
        assert expand([f"@{tmp_path}/hosts"]) == ("a", "b", "n1", "n2")

    @pytest.mark.parametrize(("line", "remarks"), [("a slots=8", 0), ("a port=222 slots=8", 1)])
    def test_with_settings_that_matter_and_are_not_used_are_reported(
        self, tmp_path: Path, line: str, remarks: int
    ) -> None:
        (tmp_path / "hosts").write_text(line)
        remarks_given: list[str] = []
        assert expand([f"@{tmp_path}/hosts"], remarks_given.append) == ("a",)
        assert len(remarks_given) == remarks
        assert all("port=222" in text for text in remarks_given)

    @pytest.mark.parametrize(
        "content",
        [b"", b"# none\n", b"\xff\xfe", b"a,b\n", b"a, b\nc\n", b"a b\n", b"a slots = 8 b\n"],
    )
    def test_without_one_host_per_line_are_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "hosts").write_bytes(content)
        with pytest.raises(BadInput) as error:
            expand([f"@{tmp_path}/hosts"])
        assert error.value.code is Code.HOSTLIST_FILE

    @pytest.mark.parametrize("path", ["/dev/zero", ".", "missing"])
    def test_that_cannot_be_read_are_refused(self, path: str) -> None:
        with pytest.raises(BadInput) as error:
            expand([f"@{path}"])
        assert error.value.code is Code.HOSTLIST_FILE
        assert "Errno" not in str(error.value)


@given(st.text(max_size=40))
def test_any_text_gives_hosts_that_are_safe_on_a_command_line_or_bad_input(text: str) -> None:
    try:
        hosts = expand([text]) if not text.startswith("@") else ()
    except BadInput:
        return
    for host in hosts:
        assert host[0] != "-"
        assert not set(host) & set(" \t\n'\"$`;&|<>()[]/\\*?")


@given(st.integers(0, 10**6), st.integers(0, 200), st.integers(1, 8))
def test_a_range_keeps_its_leading_zeros(low: int, more: int, width: int) -> None:
    first = str(low).zfill(width)
    hosts = expand([f"n[{first}-{low + more}]"])
    assert hosts[0] == f"n{first}"
    assert [int(host[1:]) for host in hosts] == list(range(low, low + more + 1))


@given(
    st.lists(
        st.builds(
            "{}{}{}".format,
            st.sampled_from(["node", "gpu-a", "10.0.0.", "n1-"]),
            st.integers(0, 120) | st.sampled_from(["007", "08", "09", "10"]),
            st.sampled_from(["", ".rack", "x"]),
        ),
        unique=True,
    )
)
def test_a_folded_list_expands_to_the_same_hosts(names: list[str]) -> None:
    assert sorted(expand([folded(names)] if names else [])) == sorted(names)


def test_a_folded_list_is_short_and_keeps_zeros() -> None:
    names = [f"node{number:02}" for number in range(8, 17)]
    assert folded([*names, "login", "gpu7"]) == "node[08-16],login,gpu7"
    assert folded([]) == ""
