"""The right wing: one machine's supervisor, agent and MLX engine."""
