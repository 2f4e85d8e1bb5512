"""One module a command; each offers `add_arguments(parser)` and `main(args)`."""
