"""Datasets that are read in order: stages that pass chunks of elements upwards, each of which can start anywhere."""
