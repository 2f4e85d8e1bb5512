"""The commands of `fleet` that the worker's side does. None imports mlx: what computes is a child process."""
