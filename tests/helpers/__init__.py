"""Shared by the tests: a small training run, sample files, references, checks of refusals."""
