"""One suite per seam, over all that keep its contract."""
