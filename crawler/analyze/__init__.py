"""What results hold and lack, and what changed between two runs."""
