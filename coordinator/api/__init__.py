"""The HTTP API: OpenAI's files and batches, and what the fleet's own commands ask; one module a resource."""
