"""The report as one HTML file with plots: no script, nothing from the network."""
