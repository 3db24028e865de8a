"""Replace names and addresses in texts with neutral ones, consistently in all texts.

Serial numbers, UUIDs and PCI addresses stay: they show which hardware a ticket is about.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Sequence

#: Words of letters and digits that are joined: host names, parts of them, or several of them.
_JOINED = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")
_PIECES = re.compile(r"[A-Za-z0-9]+|[._-]+")
_IPV4 = re.compile(r"(?<!\d)(?<!\d\.)(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)")
_IPV6 = re.compile(r"(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
#: Hardware addresses, including the 20 bytes of an InfiniBand port.
_MAC = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5,19}[0-9A-Fa-f]{2}(?![\w:])")
#: Amazon's names of hosts contain their addresses.
_ADDRESS_NAME = re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}\b(?:\.[a-z0-9-]+)*", re.IGNORECASE)
_BUCKET = re.compile(r"\b(?:gs|s3|az|abfss?)://[^\s/'\"]+")
#: The search begins at the first character of a word only: words of hosts may have no end.
_USER = re.compile(
    r"(?<=/home/)[^\s/:'\"]+|(?<=/Users/)[^\s/:'\"]+|(?<![\w.+-])[\w.+-]+(?=@[A-Za-z0-9])"
)
#: The ends of names of files: they are not parts of a domain.
_SUFFIXES = frozenset({"csv", "err", "gz", "json", "log", "out", "txt", "xml", "yaml"})


class Redactor:
    """Replacements of the names and addresses of one run; equal ones get equal replacements."""

    def __init__(self, hosts: Sequence[str], others: Iterable[str] = ()) -> None:
        """Take the `hosts` in their order; `others` are names of racks, projects, instances.

        The first label of a full host name is replaced, too, and so is any domain after it.
        """
        self._names: dict[str, str] = {}
        self._unusual: dict[str, str] = {}
        self._seen: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        #: Pieces of the longest name, and the first pieces of all names.
        self._longest = 1
        self._firsts: set[str] = set()
        for number, host in enumerate(dict.fromkeys(hosts), 1):
            self._add(host, f"node-{number}")
        for name in dict.fromkeys(others):
            self._add(name, f"name-{len(self._names) + 1}")

    def alias(self, host: str, also: str) -> None:
        """Add another name of a host."""
        self._add(also, self._names.get(host.lower()) or self._unusual.get(host, ""))

    def _add(self, name: str, replacement: str) -> None:
        if not name or not replacement or _is_loopback(name):
            return
        if not _JOINED.fullmatch(name):
            self._unusual.setdefault(name, replacement)
            return
        self._names.setdefault(name.lower(), replacement)
        pieces = _PIECES.findall(name.lower())
        self._longest = max(self._longest, len(pieces))
        self._firsts.add(pieces[0])
        label = name.partition(".")[0]
        if not label.isdigit():
            self._names.setdefault(label.lower(), replacement)

    def __call__(self, text: str) -> str:
        """Return the text without the names and addresses."""
        for name in sorted(self._unusual, key=len, reverse=True):
            text = text.replace(name, self._unusual[name])
        text = _BUCKET.sub(lambda found: self._known(found[0], "bucket"), text)
        text = _USER.sub(lambda found: self._known(found[0], "user"), text)
        text = _ADDRESS_NAME.sub(lambda found: self._known(found[0], "host"), text)
        text = _MAC.sub(lambda found: self._numbered("mac", found[0].lower()), text)
        for pattern in (_IPV4, _IPV6):
            text = pattern.sub(lambda found: self._address(found[0]), text)
        return _JOINED.sub(lambda found: self._joined(found[0]), text)

    def _known(self, text: str, kind: str) -> str:
        return self._names.get(text.lower()) or self._numbered(kind, text)

    def _numbered(self, kind: str, text: str) -> str:
        if (kind, text) not in self._seen:
            self._counts[kind] += 1
            self._seen[kind, text] = f"{kind}-{self._counts[kind]}"
        return self._seen[kind, text]

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified:
            return text
        return self._names.get(text.lower()) or self._numbered("address", str(address))

    def _joined(self, text: str) -> str:
        """Return joined words with the longest known names replaced, and domains left out."""
        pieces = _PIECES.findall(text)
        if len(pieces) == 1:
            return self._names.get(text.lower(), text)
        kept: list[str] = []
        start, of_names = 0, len(pieces)
        while pieces[of_names - 1].lower() in _SUFFIXES and pieces[of_names - 2] == ".":
            of_names -= 2
        while start < len(pieces):
            last = min(len(pieces), start + self._longest)
            ends = range(last, start, -1) if pieces[start].lower() in self._firsts else ()
            names = (end for end in ends if "".join(pieces[start:end]).lower() in self._names)
            end = next(names, 0)
            if not end:
                kept.append(pieces[start])
                start += 1
                continue
            kept.append(self._names["".join(pieces[start:end]).lower()])
            # The domain of a host: labels that begin with a letter.
            while end + 1 < of_names and pieces[end] == "." and pieces[end + 1][0].isalpha():
                end += 2
                while end + 1 < of_names and pieces[end] != ".":
                    end += 2
            start = end
        return "".join(kept)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
