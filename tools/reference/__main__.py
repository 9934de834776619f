"""Writes the reference pages that differ from the code."""

from tools.pages import ROOT
from tools.reference import write

if __name__ == "__main__":
    for file in write():
        print(f"written: {file.relative_to(ROOT)}")
