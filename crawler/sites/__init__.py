"""Sites: what is read out of a page."""
