"""Tests of the promises of datasets, by examples that a user would try."""
