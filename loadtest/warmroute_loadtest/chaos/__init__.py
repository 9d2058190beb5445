"""Faulty workers, clients of all manners, and the random schedules that set them on a router."""
