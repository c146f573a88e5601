"""The GRPOJob contract: models, batch plan and shared names. Imports neither torch nor a Kubernetes client."""
