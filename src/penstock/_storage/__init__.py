"""Where computed elements are kept: in memory or on disk, bounded in bytes."""
