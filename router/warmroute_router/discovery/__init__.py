"""Where workers come from, and which of them may."""
