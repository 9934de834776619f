"""The version of this holdfast."""

VERSION = "0.1.0"
