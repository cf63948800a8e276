"""Rules of sharing."""
