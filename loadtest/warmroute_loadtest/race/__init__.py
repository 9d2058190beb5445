"""`make race`: this router, others, and a direct connection, measured in turns on one machine."""
