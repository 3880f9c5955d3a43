"""One run from beginning to end: its folder, its record, its checkpoints."""
