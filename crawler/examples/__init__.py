"""Example sites on loopback, each with the records that a crawl of it must give."""
