"""Scraping: the way of one page."""
