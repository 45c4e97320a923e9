"""The entry point of `shoal` and `python -m shoal`."""

import gc


def main() -> None:
    # Most of a short command's time is imports, which create no garbage to collect. `cli.run`
    # enables collection again for the operation itself.
    gc.disable()
    from shoal.cli import main

    try:
        main(prog_name="shoal")
    except SystemExit as exiting:
        _exit(exiting)


def _exit(exiting: SystemExit) -> None:
    """Exit without the interpreter's teardown of modules, which the user would wait for."""
    import atexit
    import os
    import sys
    import threading

    if threading.active_count() > 1 or not isinstance(exiting.code, int | None):
        raise exiting
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exiting.code or 0)


if __name__ == "__main__":
    main()
