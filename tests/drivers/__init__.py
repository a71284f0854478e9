"""Drivers of the things that tests work with: a machine, a bundle, a host."""
