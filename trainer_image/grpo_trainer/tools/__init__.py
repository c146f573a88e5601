"""Makes the models of the demo image, while it is built."""
