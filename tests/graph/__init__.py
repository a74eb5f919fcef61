"""Tests of graphs: names, random streams, errors and identity."""
