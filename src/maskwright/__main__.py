"""The `maskwright` command, and `python -m maskwright`."""

import os
import signal


def main() -> None:
    """Tells a Ctrl-C during the imports, which take half a second, in one line; `cli.main` replaces the handler."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(75 if os.write(2, b"stopped: run the command again\n") else 1))
    from maskwright.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
