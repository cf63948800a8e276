"""Rules of descriptors."""
