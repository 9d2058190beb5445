"""Several router processes on one port: one parent, and its children."""
