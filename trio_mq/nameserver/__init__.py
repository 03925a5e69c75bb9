"""The name server: who has which topic, and a few settings for everybody. Needs no store."""
