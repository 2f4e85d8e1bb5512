"""What commands say to a coordinator elsewhere."""
