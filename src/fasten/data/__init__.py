"""Data: from raw files to images, labels, splits, noise and the task of a run. Nothing here needs torch."""
