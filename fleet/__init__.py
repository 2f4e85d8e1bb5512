"""The ground of mlx-fleet: what the coordinator and the workers agree on. Imports neither wing."""

__version__ = "0.1.0"
