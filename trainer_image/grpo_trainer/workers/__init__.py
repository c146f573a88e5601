"""Processes that hold the model."""
