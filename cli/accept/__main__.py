"""Run the command line, and turn every failure into one message and a documented exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from pathlib import Path

try:
    from accept.app.command_line import call
    from accept.app.help import as_called
    from accept.core.error_codes import Code
    from accept.core.errors import AcceptError, BadInput, Exit, Terminated
    from accept.core.text import inert, plain, visible
    from accept.report.console import discard_output, outlive_reader
except KeyboardInterrupt:
    # These imports take half a second; `Exit` may not be imported yet.
    sys.exit(130)


def main() -> None:
    """Run a command, and turn every failure into one message and a documented exit code."""
    is_terminated = False

    def terminate(*_: object) -> None:
        # Later signals would interrupt the clean-up.
        signal.signal(signal.SIGTERM, lambda *_: None)
        nonlocal is_terminated
        is_terminated = True
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        code = _call()
    except AcceptError as error:
        code = _failed(str(error), error.code, error.exit)
    except KeyboardInterrupt:
        code = Exit.CTRL_C
    except OSError as error:
        discard_output(sys.stdout)
        code = _failed(_system_error(error), Code.SYSTEM, Exit.INTERRUPTED)
    except RecursionError:
        text = "the input is nested too deeply\n  use a flatter file or folder"
        code = _failed(text, Code.INPUT_TOO_DEEP, Exit.USAGE)
    except MemoryError:
        text = "out of memory\n  use smaller input, or free memory"
        code = _failed(text, Code.MEMORY, Exit.INTERRUPTED)
    except Exception as error:
        code = _crashed(error)
    finally:
        signal.signal(signal.SIGTERM, before)
    # Typer turns every KeyboardInterrupt into 130.
    sys.exit(int(Exit.TERMINATED if is_terminated and code == Exit.CTRL_C else code))


def _call() -> int:
    """Run the command that the command line names, and return its exit code."""
    _check_streams()
    try:
        code = call(sys.argv[1:])
    except SystemExit as exit_:
        # Typer turns a connection that breaks into exit code 1, which is not documented.
        if isinstance(exit_.__context__, BrokenPipeError):
            raise exit_.__context__ from None
        code = exit_.code if isinstance(exit_.code, int) else 0
    # Python would flush at exit, but report an error as a traceback.
    sys.stdout.flush()
    return code


def _check_streams() -> None:
    """Make output outlive its reader, and replace a closed stdin or stderr by /dev/null.

    Raises BadInput if stdout is closed.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - open until exit
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = outlive_reader(sys.stderr)
    if sys.stdout is None:
        raise BadInput(
            "standard output is closed",
            code=Code.STDOUT_CLOSED,
            hint="send it to a file, or to /dev/null to discard it",
        )
    sys.stdout = outlive_reader(sys.stdout)


def _failed(text: str, code: Code, exit_code: Exit) -> Exit:
    """Print a failure, and with --verbose the traceback of an unexpected one."""
    with contextlib.suppress(OSError, ValueError):
        if not isinstance(sys.exc_info()[1], AcceptError) and _is_verbose():
            sys.stderr.write(inert(visible(traceback.format_exc())))
        sys.stderr.write(f"error[{code}]: {as_called(inert(visible(text)))}\n")
        sys.stderr.flush()
    return exit_code


def _is_verbose() -> bool:
    """Return True if the command line has -v or --verbose; it may not have been parsed yet."""
    words = sys.argv[1:]
    return any(word == "--verbose" or re.fullmatch("-[a-z]*v[a-z]*", word) for word in words)


def _system_error(error: OSError) -> str:
    where = f"{plain(error.filename)}: " if error.filename else ""
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
    """Report a bug in accept."""
    text = f"internal error: {type(error).__name__}: {error}".removesuffix(": ")
    advice = "this is a bug in accept: run the same command with -v and report the output"
    return _failed(f"{' '.join(text.split())}\n  {advice}", Code.INTERNAL, Exit.INTERNAL)


if __name__ == "__main__":
    main()
