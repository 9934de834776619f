"""Writes the pictures that differ from their data."""

from tools.pages import ROOT
from tools.pictures import write

if __name__ == "__main__":
    for file in write():
        print(f"written: {file.relative_to(ROOT)}")
