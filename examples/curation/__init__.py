"""A curation service: five schedulers over tables of its own, sharing the one loop of `holdfast.adopt`."""
