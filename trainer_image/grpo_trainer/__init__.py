"""The program inside a GRPOJob's pods."""
