"""Return the known lines of programs, as `values/signs.yaml` has them."""

from __future__ import annotations

from accept.config.signs import sign_rows

#: Each example with the name of its sign.
EXAMPLES = [
    *((name, row.example) for name, row in sign_rows().items()),
    *(
        (f"{name}{code}", one.example)
        for name, row in sign_rows().items()
        for code, one in row.codes.items()
        if one.example
    ),
]
