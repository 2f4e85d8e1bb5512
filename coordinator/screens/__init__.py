"""What a person sees: progress, reports, status, findings."""
