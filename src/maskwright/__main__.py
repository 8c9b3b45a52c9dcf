"""The `maskwright` command, and `python -m maskwright`."""

import os
import signal
from types import FrameType


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup makes it
            signal.signal(number, _leave)  # `cli.main` sets its own, after imports that take half a second
    from maskwright.cli.main import main as run

    run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends at once with exit code 75: an exception would become a traceback of the imports."""
    os.write(2, b"stopped: run the command again\n")
    os._exit(75)


if __name__ == "__main__":
    main()
