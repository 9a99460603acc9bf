# SPDX-License-Identifier: Apache-2.0
"""One style sheet for every figure: a column wide, readable in grey, safe for the colour-blind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort.atomic_file import atomic_writer
from dpcohort.report.selection_figure import picture_format

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["LINES", "PALETTE", "log_scale", "paper_style", "save_figure"]

#: Colours that stay apart with every common kind of colour blindness (Okabe and Ito, 2008).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: Beside the colour, so that a grey print can be read.
LINES = ("-", "--", "-.", ":")

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.framealpha": 0.9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "pdf.fonttype": 42,  # text stays text, as publishers ask
    "ps.fonttype": 42,
    "svg.fonttype": "none",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw in this style meanwhile; matplotlib's own settings are left as they were.

    Example:
        >>> import matplotlib
        >>> with paper_style():
        ...     matplotlib.rcParams["pdf.fonttype"]
        42
    """
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=PALETTE)}):
        yield


def log_scale(*axes: Axis) -> None:
    """Logarithmic axes with plain numbers at 1, 2 and 5 times a power of ten.

    Example:
        >>> from matplotlib.figure import Figure
        >>> axis = Figure().subplots()
        >>> log_scale(axis.xaxis)
        >>> axis.get_xscale()
        'log'
    """
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for axis in axes:
        across = axis is axis.axes.xaxis
        (axis.axes.set_xscale if across else axis.axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, PDF or SVG, by the ending of its name; the file is whole or absent.

    Raises:
        InputError: for another ending.
    """
    kind = picture_format(path)
    # Without the date the same figure is the same file.
    dated = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}[kind]
    with paper_style(), atomic_writer(path, binary=True) as file:
        figure.savefig(file, format=kind, dpi=200, metadata={dated: None})
