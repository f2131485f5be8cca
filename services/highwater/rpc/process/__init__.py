"""A process of a service: its start, its forks and children, and what the operating system lets it have."""
