"""The commands, one module for each noun or verb."""
