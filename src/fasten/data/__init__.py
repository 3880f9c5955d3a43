"""Data: raw files -> images and labels, splits, noise, and the task of a run; without torch."""
