"""Carrying out pulls on a worker rank."""
