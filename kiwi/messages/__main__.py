"""Writes the reference pages of errors and notes into `docs/reference` of a checkout."""

from pathlib import Path

from kiwi.messages.pages import errors_page, notes_page

PAGES = {"errors.md": errors_page, "notes.md": notes_page}
FOLDER = Path(__file__).parents[2] / "docs" / "reference"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
