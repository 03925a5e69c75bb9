"""Typed requests to typed replies, by family; nothing here knows how a request came in."""
