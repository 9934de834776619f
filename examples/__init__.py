"""Programs to read and to run. `make demo` runs `examples.documents`, `make demo-NAME` one of the others."""
