"""How long a backlog will take, and what it costs."""
