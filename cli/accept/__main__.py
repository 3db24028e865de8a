"""Run the command line. Every failure ends here, in one message and a documented exit code."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import re
import sys
from pathlib import Path

from accept.app.commands import app
from accept.app.declare import only
from accept.core.errors import AcceptError, BadInput, Exit

#: Both script names; shell completion is for the one that was called.
_NAMES = ("accept", "gpu-accept")


def main() -> None:
    """Run a command. Every failure ends here, in one message and a documented exit code."""
    # What starting allocates stays; looking through it for garbage costs a tenth of the start.
    gc.set_threshold(50_000)
    # Python looks once more at its end.
    atexit.register(gc.freeze)
    try:
        code = _call()
    except AcceptError as error:
        code = _failed(str(error), error.code)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; nothing more can be said to them.
        _discard_output()
        code = Exit.USAGE
    except OSError as error:
        _discard_output()
        code = _failed(_system_error(error), Exit.BROKEN_OFF)
    except RecursionError:
        code = _failed("the input is nested too deeply\n  use a flatter file or folder", Exit.USAGE)
    except MemoryError:
        code = _failed("out of memory\n  use smaller input, or free memory", Exit.BROKEN_OFF)
    except Exception as error:
        code = _crashed(error)
    sys.exit(int(code))


def _call() -> int:
    """Run the command that the command line names, and return its exit code."""
    _check_streams()
    called = Path(sys.argv[0]).name
    code = 0
    try:
        only(app, "".join(sys.argv[1:2]))(prog_name=called if called in _NAMES else _NAMES[0])
    except SystemExit as ended:
        # Typer turns a broken pipe into exit code 1, which no page names.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        code = ended.code if isinstance(ended.code, int) else 0
    # Python would do this at its end, where an error is a traceback.
    sys.stdout.flush()
    return code


def _check_streams() -> None:
    """Replace a closed stdin or stderr by nothing. Raises BadInput if stdout is closed."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - open to the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise BadInput(
            "standard output is closed", hint="send it to a file, or to /dev/null if nobody reads"
        )


def _discard_output() -> None:
    """Send what stdout still holds to nowhere, so that Python does not fail over it at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(text: str, code: Exit) -> Exit:
    """Print the message of a failure, and with --verbose the traceback of an unexpected one."""
    from accept.core.text import visible

    with contextlib.suppress(OSError, ValueError):
        if not isinstance(sys.exc_info()[1], AcceptError) and _is_verbose():
            import traceback

            sys.stderr.write(visible(traceback.format_exc()))
        sys.stderr.write(f"accept: {visible(text)}\n")
        sys.stderr.flush()
    return code


def _is_verbose() -> bool:
    """Return True if the command line has -v or --verbose; it may not have been parsed yet."""
    words = sys.argv[1:]
    return any(word == "--verbose" or re.fullmatch("-[a-z]*v[a-z]*", word) for word in words)


def _system_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    room = "make room on the disk of the output, of ACCEPT_RUNS (runs) and of TMPDIR"
    rights = "check owner and mode of that file or folder, or name another one"
    advice = {
        errno.ENOSPC: room,
        errno.EDQUOT: room,
        errno.EACCES: rights,
        errno.EPERM: rights,
        errno.EROFS: rights,
    }.get(error.errno or 0, "run the same command with -v to see where it happens")
    return f"{where}{error.strerror or error}\n  {advice}"


def _crashed(error: Exception) -> Exit:
    """Report a defect of accept."""
    text = f"internal error: {type(error).__name__}: {error}".removesuffix(": ")
    advice = "this is a defect of accept: run the same command with -v and report what it prints"
    return _failed(f"{' '.join(text.split())}\n  {advice}", Exit.INTERNAL)


if __name__ == "__main__":
    main()
