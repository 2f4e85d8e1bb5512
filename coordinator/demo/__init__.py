"""The backlogs of the demo."""
