"""Who may go on, and who waits."""
