"""The `maskwright` command, and `python -m maskwright`."""

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """A signal during the imports, which take half a second, ends in one line too; `cli.main` replaces the handler."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    from maskwright.cli.main import main as run

    run()


def _stop(*_: object) -> NoReturn:
    os.write(2, b"stopped: before the command began; run it again\n")
    os._exit(75)


if __name__ == "__main__":
    main()
