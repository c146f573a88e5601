"""Spec to manifest: one file a kind of child. Pure."""
