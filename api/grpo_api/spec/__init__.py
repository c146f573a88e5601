"""The sections of a GRPOJob's spec, one file each or a few small ones together. Names are verl's, in camelCase."""
