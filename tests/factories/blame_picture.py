"""Draw `docs/blame.svg`, pairs of hosts as a matrix: `python -m tests.factories.blame_picture`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.factories.paths import ROOT

PICTURE = ROOT / "docs" / "blame.svg"
_HOSTS, _CELL, _TOP, _LEFT, _STEP = 16, 12, 56, 20, 248
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 730 300" font-family="sans-serif" \
role="img" aria-label="Bad pairs of a node, of a border, and of no host">
<style>
text { fill: #333; font-size: 13px } .title { font-weight: bold; font-size: 15px }
.good { fill: #9db4c8 } .bad { fill: #d9480f }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .good { fill: #49627a } .bad { fill: #ff8a4c }
}
</style>
"""


def picture() -> str:
    """Return the picture as SVG, with the same bytes each time."""
    chance = random.Random(3)
    pairs = [(a, b) for a in range(_HOSTS) for b in range(a)]
    noise = frozenset(pair for pair in pairs if chance.random() < 0.05)
    spread = frozenset(pair for pair in pairs if chance.random() < 0.12)
    panels: list[tuple[str, str, Callable[[int, int], bool]]] = [
        ("node", "one row and its column", lambda a, b: 5 in (a, b) or (a, b) in noise),
        ("border", "two blocks", lambda a, b: (a < 8) is not (b < 8)),
        ("fabric", "no row, no block", lambda a, b: (a, b) in spread),
    ]
    lines = [_HEAD]
    for number, (title, text, is_bad) in enumerate(panels):
        lines += _panel(_LEFT + number * _STEP, title, text, is_bad)
    y = _TOP + _HOSTS * _CELL + 26
    for x, kind, text in ((20, "good", "good pair"), (130, "bad", "bad pair")):
        lines.append(f'<rect class="{kind}" x="{x}" y="{y}" width="11" height="11"/>')
        lines.append(f'<text x="{x + 18}" y="{y + 10}">{text}</text>')
    lines.append(f'<text x="240" y="{y + 10}">Each row and each column is a host.</text>')
    return "\n".join([*lines, "</svg>", ""])


def _panel(left: int, title: str, text: str, is_bad: Callable[[int, int], bool]) -> Iterator[str]:
    yield f'<text class="title" x="{left}" y="22">{title}</text>'
    yield f'<text x="{left}" y="42">{text}</text>'
    cells: dict[bool, list[str]] = {False: [], True: []}
    for row in range(_HOSTS):
        for column in range(_HOSTS):
            if row != column:
                start = f"M{left + column * _CELL} {_TOP + row * _CELL}"
                bad = is_bad(max(row, column), min(row, column))
                cells[bad].append(f"{start}h11v11h-11z")
    for bad, paths in cells.items():
        yield f'<path class="{"bad" if bad else "good"}" d="{"".join(paths)}"/>'


if __name__ == "__main__":
    PICTURE.write_text(picture())
