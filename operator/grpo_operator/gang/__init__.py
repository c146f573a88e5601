"""Gang backends: one file each behind `base.GangBackend`, and the choice between them."""
