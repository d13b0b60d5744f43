"""The task packages that there are: a new one is a line here."""

from collections.abc import Mapping
from types import MappingProxyType

from common.cli import Package
from lra.__main__ import PACKAGE as LRA

PACKAGES: Mapping[str, Package] = MappingProxyType({package.name: package for package in (LRA,)})
