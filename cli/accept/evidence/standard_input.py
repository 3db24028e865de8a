"""Read evidence or logs from standard input, and refuse input that the command line does not name.

Nothing here waits for a person: a terminal is never read.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadInput
from accept.core.safe_read import BLOCK
from accept.core.text import command_line
from accept.evidence.archive import DISK_ERRORS

#: The path that stands for standard input, and its name for people.
PATH = "-"
NAME = "standard input"
#: Upper limit of what is read, in bytes. Evidence of 4,000 nodes is below it.
_MAX_BYTES = 8 << 30


def refuse_unnamed(words: Sequence[str]) -> None:
    """Raise BadInput if standard input is a pipe, socket or file: it would be ignored.

    `words` are those of the command line, which names no run or path.

    A terminal and /dev/null hold no evidence, so they say nothing about the user's intent.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed
        return
    if stat.S_ISCHR(mode):
        return
    command = command_line("accept", *words)
    kind = "a file" if stat.S_ISREG(mode) else "a pipe"
    raise BadInput(
        f"standard input is {kind}, and no run or path is given",
        code=Code.STDIN_UNNAMED,
        hint=f"to read it: {command} -; to read the newest run: {command} last",
    )


@contextmanager
def saved() -> Iterator[Path]:
    """Save standard input to a temporary file. Errors about that file name standard input.

    Raises BadInput if it is empty, a terminal or too large.
    """
    with tempfile.TemporaryDirectory(prefix="accept-stdin-") as folder:
        file = Path(folder) / "stdin"
        try:
            _copy(file)
            yield file
        except AcceptError as error:
            error.message = named(error.message, file)
            raise


def named(text: str, file: Path) -> str:
    """Return a text that names standard input instead of the file that it was saved to."""
    return text.replace(str(file), NAME)


def _copy(target: Path) -> None:
    is_terminal = sys.stdin.isatty()
    size = 0
    try:
        with target.open("xb") as file:
            while not is_terminal and (block := sys.stdin.buffer.read(BLOCK)):
                size += len(block)
                if size > _MAX_BYTES:
                    raise BadInput(
                        f"standard input has more than {_MAX_BYTES >> 30} GiB",
                        code=Code.STDIN_TOO_LARGE,
                        hint="save it to a file or folder, and give its path",
                    )
                file.write(block)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise BadInput(
            f"standard input cannot be saved: {error.strerror}",
            code=Code.ARCHIVE_DISK,
            hint=f"free space in {tempfile.gettempdir()}, or set TMPDIR to another disk",
        ) from None
    if not size:
        raise BadInput(
            f"standard input is {'a terminal' if is_terminal else 'empty'}",
            code=Code.STDIN_EMPTY,
            hint="send a log or an archive: COMMAND | accept judge -",
        )
