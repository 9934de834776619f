"""The version of this holdfast."""

VERSION = "0.2.0"
