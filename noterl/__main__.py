"""Run the command `noterl` by `python -m noterl`."""

from noterl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
