"""The HTML report: one file, without network, from a plan's document."""

from kiwi.report.render import render as render
from kiwi.report.render import write_report as write_report
