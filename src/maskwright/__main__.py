"""`python -m maskwright` is the same as the `maskwright` command."""

from maskwright.cli.main import main

if __name__ == "__main__":
    main()
