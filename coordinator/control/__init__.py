"""The loop that carries decisions out, and the processes around it."""
