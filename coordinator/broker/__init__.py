"""The broker's process, and what the coordinator says through it."""
