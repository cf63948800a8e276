"""Share one buffer between processes and devices through a file descriptor, and check the data."""

__version__ = "0.1.0"
