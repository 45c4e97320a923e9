"""Where `shoal`, or `python -m shoal`, begins."""

import gc


def main() -> None:
    # Most commands load modules and end soon after: there is no garbage to look for meanwhile.
    # Those that do more have it looked for again.
    gc.disable()
    from shoal.cli import main

    main(prog_name="shoal")


if __name__ == "__main__":
    main()
