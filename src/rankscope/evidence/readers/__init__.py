"""Evidence in files that other tools wrote: one reader a file, told apart by content."""
