"""Trio streams around the sans-IO protocol room: listeners, outbound links, request dispatch."""
