"""A writer's backlog on tables of its own, worked off by several processes with `holdfast.adopt`."""
