"""Command line of GRPOJobs: plan, run, follow, status, logs."""
