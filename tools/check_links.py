#!/usr/bin/env python3
"""Reports links of Markdown pages to files or headings of this repository that are not there."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main():
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    bad = 0
    for name in names.split():
        page = ROOT / name
        for link in LINK.findall(CODE.sub("", page.read_text()) if page.is_file() else ""):
            file, _, heading = link.partition("#")
            if "://" in link or file.startswith("mailto:"):
                continue
            target = page.parent / file if file else page
            if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
                print(f"{name}: there is no {link}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
