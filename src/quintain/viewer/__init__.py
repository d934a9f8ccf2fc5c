"""Shows runs to people: `transcript` on a terminal, `report` as one HTML file. Computes nothing."""
