"""One file a policy, each of pure functions."""
