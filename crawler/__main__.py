"""`python -m crawler`."""

from crawler.cli.main import main

if __name__ == "__main__":
    main()
