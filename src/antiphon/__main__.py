"""`python -m antiphon` is the command `antiphon`, for environments whose scripts are not on the path."""

from antiphon.cli.main import main

if __name__ == "__main__":
    main("antiphon")
