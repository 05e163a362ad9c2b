"""Work for a Gateway, and a Gateway to work for."""
