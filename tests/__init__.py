"""The tests, and what they share: strategies for Hypothesis and the peers' reference stores."""
