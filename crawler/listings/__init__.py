"""Listings of different sites that are the same thing."""
