"""The HTML report of a plan's document, the notebook's view and the plot."""

from kiwi.report.render import render as render
from kiwi.report.render import write_report as write_report
