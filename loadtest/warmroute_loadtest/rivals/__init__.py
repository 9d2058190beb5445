"""This router and others as processes: how each is started, and how it is looked at from outside."""
