"""The record: one SQLite file, and who may write it."""
