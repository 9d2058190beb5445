"""The client's side of a process: sockets, HTTP, and how it starts and stops."""
