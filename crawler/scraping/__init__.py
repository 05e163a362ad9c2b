"""One attempt at one page: its requests, its verdict and its record."""
