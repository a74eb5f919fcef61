"""Tests of filters and their indexes."""
