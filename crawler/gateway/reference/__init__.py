"""The reference Gateway: small, and complete enough for a fleet without any other."""
