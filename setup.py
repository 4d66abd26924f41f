"""The native twin of the Spark decoder, built where there is a compiler; everything else is in pyproject.toml.

It is optional: where it cannot be built the installation goes on, and numpy decodes.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("cometmq.spark._native", sources=["spark/_native.c"], extra_compile_args=["-O3"], optional=True),
    ]
)
