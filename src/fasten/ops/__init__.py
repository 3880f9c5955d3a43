"""Formulas that several methods share."""
