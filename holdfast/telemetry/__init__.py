"""Telemetry: metrics, health, traces and logs of a process, by the conventions of the field. Off, it costs nothing."""
