"""Watches GRPOJobs and makes pods. Imports no torch."""
