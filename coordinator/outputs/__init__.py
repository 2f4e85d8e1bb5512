"""Answers out of the ledger, in every form they are written in."""
