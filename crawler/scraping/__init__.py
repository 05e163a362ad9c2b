"""Scraping: attempts at pages, what they make of a page, and stored pages."""
