"""Titles of panels fit, and every row of panels is labelled alike."""

from __future__ import annotations

import pytest

from fnll.plotting.style import in_lines, panels, title


@pytest.mark.parametrize(
    ("text", "letters", "lines"),
    [
        ("rho=0.4", 20, ["rho=0.4"]),
        ("a=5 · dirichlet · h_idn · rounds=20", 23, ["a=5 · dirichlet · h_idn", "rounds=20"]),
        ("wrong labels among the top 1 % of suspects", 24, ["wrong labels among the", "top 1 % of suspects"]),
        ("short · a part that is longer than a line", 20, ["short", "a part that is", "longer than a line"]),
        ("", 20, [""]),
    ],
)
def test_long_titles_are_broken_between_parts_first(text: str, letters: int, lines: list[str]) -> None:
    assert in_lines(text, letters).split("\n") == lines


def test_a_title_is_no_wider_than_its_panel() -> None:
    figure, axes = panels(3)
    title(axes[0], "imbalance=5 · bernoulli_dirichlet · h_idn · fraction=1 rounds=20")
    figure.draw_without_rendering()
    assert axes[0].title.get_window_extent().width <= figure.bbox.width / 3


@pytest.mark.parametrize(("count", "labelled"), [(3, "TTT"), (4, "TTTT"), (6, "FFFTTT"), (7, "FFFTTTT")])
def test_a_row_of_panels_is_labelled_as_a_whole(count: int, labelled: str) -> None:
    _, axes = panels(count, share=True)
    shown = [ax.xaxis.get_tick_params().get("labelbottom", True) for ax in axes]
    assert "".join("T" if one else "F" for one in shown) == labelled
