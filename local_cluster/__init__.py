"""A Kubernetes for the demo and the tests: the user's own, kind, or one built here from package registries."""
