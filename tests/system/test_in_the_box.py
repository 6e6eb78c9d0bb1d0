"""README's list of what is in the box is what the configs hold."""

import importlib.util
import re
from pathlib import Path

from fnll.harness.choices import options

ROOT = Path(__file__).parents[2]


def load():
    spec = importlib.util.spec_from_file_location("in_the_box", ROOT / "experiments/in_the_box.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_up_to_date():
    text = (ROOT / "README.md").read_text()
    assert load().replaced(text) == text, "python experiments/in_the_box.py"


def test_every_choice_is_in_it():
    section = load().section()
    for group in ("dataset", "model", "executor"):
        assert all(f"`{name}`" in section for name in options(group))
    assert all(url.startswith("https://") for url in re.findall(r"\]\((http[^)]*)\)", section))
    assert section.count("](https://") >= 15, "methods link to their papers"


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
