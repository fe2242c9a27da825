"""CUDA toolkits: the drivers that run them, what nvcc compiles for, host compilers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudadoctor.knowledge.build.sources import keys

Facts = Callable[[str], dict[str, Any]]

CURRENT = ("580", "595", "615")
"""Branches that are long-term, in production, or the newest; the others have ended."""

JETSON_BRANCH = {
    "branch": 540,
    "cuda": None,
    "note": "Linux for Tegra R36: its CUDA level comes with JetPack",
    "current": False,
    "sources": ["drivers.jetson"],
}


def drivers(read: Facts) -> dict[str, Any]:
    """Floors of CUDA majors, rows of toolkits, levels of branches, forward compatibility."""
    facts = read("cuda_driver")
    branches = [_branch(row) for row in facts["driver_branches"]]
    compat = facts["forward_compatibility"]
    return {
        "floors": [_floor(read, row) for row in facts["minor_version_compatibility"][:-1]],
        "toolkits": [_toolkit(read, row) for row in facts["toolkits"]],
        "branches": sorted([*branches, JETSON_BRANCH], key=lambda row: -row["branch"]),
        "windows_levels": [
            {"driver": row["driver"], "cuda": row["reports_cuda"], "sources": ["drivers.reports"]}
            for row in facts["windows_reported_cuda_level"]
        ],
        "forward_compat": [
            {"package": row["package"], "cuda": row["cuda"], "cells": row["cells"]}
            for row in compat["rows"]
        ],
        "forward_compat_sources": keys(read, "drivers", compat["source"]),
    }


def compilers(read: Facts) -> dict[str, Any]:
    """What nvcc of each toolkit compiles for, and with which host compilers."""
    facts = read("cuda_arch_support")
    return {
        "nvcc": [_nvcc(read, row) for row in facts["toolkits"]],
        "hosts": [_host(read, row) for row in facts["host_compilers"]],
    }


def _floor(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "major": int(row["major"]),
        "linux": row["linux"],
        "windows": row["windows"],
        "sources": keys(read, "drivers", row["source"]),
    }


def _toolkit(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    bundled = row["bundled"] or {}
    return {
        "toolkit": row["toolkit"],
        "linux": row["linux_x86_64"],
        "windows": row["windows"],
        "bundled": bundled.get("linux_x86_64"),
        "uncertain": bool(row.get("uncertain")) or not row["cross_checked"],
        "sources": keys(read, "drivers", row["source"]),
    }


def _branch(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "branch": int(row["branch"]),
        "cuda": row["native_cuda"],
        "note": row.get("kind") or row.get("note"),
        "current": row["branch"] in CURRENT,
        "sources": ["drivers.relnotes"],
    }


def _nvcc(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "toolkit": row["toolkit"],
        "capabilities": row["cc"],
        "variants": row["feature_variants"],
        "default": row["default_target"],
        "sources": keys(read, "nvcc", row["source"]),
    }


def _host(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "toolkit": row["toolkit"],
        "gcc_max": row["gcc_max"],
        "clang_max": row["clang_max"],
        "msc_min": row["msc_ver_min"],
        "msc_below": row["msc_ver_below"],
        "visual_studio": row["visual_studio"],
        "uncertain": not row["verified_from_header"],
        "sources": keys(read, "nvcc", row["source"]),
    }
