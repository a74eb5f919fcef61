"""What a loader finds out before it chooses its workers: what rows cost, which processors, whether processes can be."""
