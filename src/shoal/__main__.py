"""The entry point of `shoal` and `python -m shoal`."""

import gc


def main() -> None:
    # Most of a short command's time is imports, which create no garbage to collect. `cli.run`
    # enables collection again for the operation itself.
    gc.disable()
    from shoal.cli import main

    main(prog_name="shoal")


if __name__ == "__main__":
    main()
