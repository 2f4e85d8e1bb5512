"""Inputs become requests and rows: read, checked, put into prompts, tokenised."""
