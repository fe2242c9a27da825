"""What uv and pip say, as texts."""

from __future__ import annotations

import json

import pytest

from cudadoctor.installers import pip, uv
from cudadoctor.installers.question import Answer, File, Question
from cudadoctor.installers.verify import Resolver, resolved, unverified, verdict_of

# --- uv ----------------------------------------------------------------------------------------

OLD_UV = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because torch==2.9.9 was not found in the cache and you require
      torch==2.9.9, we can conclude that your requirements are unsatisfiable.
"""
UV_LOCK = """\
lock-version = "1.0"
created-by = "uv"

[[packages]]
name = "Torch_Parts"
version = "2.14.1+cu126"
wheels = [{ url = "https://ada:secret@mirror.example.org/torch_parts-2.14.1.whl", size = 985,
 hashes = { sha256 = "5241" } }]
"""


def test_the_frame_of_an_older_uv_is_no_part_of_the_reason() -> None:
    found = uv.read(1, "", OLD_UV)
    assert found.kind == "refused"
    assert found.text == "torch==2.9.9 was not found in the cache and you require torch==2.9.9"


def test_a_lock_file_names_size_digest_and_no_password() -> None:
    found = uv.read(0, UV_LOCK.replace(",\n", ","), "")
    assert found.files == (
        File(
            url="https://mirror.example.org/torch_parts-2.14.1.whl",
            name="torch-parts",
            version="2.14.1+cu126",
            sha256="5241",
            size_bytes=985,
        ),
    )


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (
            "error: Request failed after 3 retries in 7.7s\n"
            "  cause: Failed to fetch: https://download.pytorch.org/whl/cu126/torch/\n"
            "  cause: client error (Connect)\n  cause: dns error\n",
            "download.pytorch.org",
        ),
        (
            "error: Failed to fetch: `https://mirror.example.org/simple/torch/`\n"
            "  Caused by: invalid peer certificate: UnknownIssuer\n",
            "mirror.example.org",
        ),
        (
            "error: No solution found when resolving dependencies\n"
            "  cause: Because torch was not found in the package registry and you require torch, "
            "we can conclude that your requirements are unsatisfiable.\n\n"
            "hint: An index (https://mirror.example.org/simple) returned a 401 Unauthorized error.",
            "mirror.example.org",
        ),
    ],
)
def test_an_index_that_uv_could_not_ask_is_no_refusal(text: str, host: str) -> None:
    found = uv.read(2, "", text)
    assert (found.kind, found.host) == ("unreached", host)


@pytest.mark.parametrize("text", ["", "not = toml = at all", "packages = 3", "[[packages]]\n"])
def test_a_lock_file_that_cannot_be_read_is_no_answer(text: str) -> None:
    assert uv.read(0, text, "").kind in ("unfit", "resolved")


def test_words_that_uv_does_not_know_are_no_refusal() -> None:
    assert uv.read(2, "", "error: unexpected argument '--format' found").kind == "unfit"


# --- pip ---------------------------------------------------------------------------------------

REPORT = {
    "version": "1",
    "install": [
        {
            "download_info": {
                "url": "https://files.example.org/torch-2.14.1-py3-none-any.whl",
                "archive_info": {"hash": "sha256=aa"},
            },
            "metadata": {"name": "Torch", "version": "2.14.1"},
        }
    ],
}
NO_MATCH = (
    "ERROR: Could not find a version that satisfies the requirement torch==2.14.2"
    " (from versions: {})\nERROR: No matching distribution found for torch==2.14.2\n"
)


def test_a_report_of_an_older_pip_names_its_digest_in_one_word() -> None:
    found = pip.read(0, json.dumps(REPORT), "", "", "cp312")
    assert [(file.name, file.version, file.sha256) for file in found.files] == [
        ("torch", "2.14.1", "aa")
    ]


def test_the_newest_offered_releases_are_named() -> None:
    text = NO_MATCH.format("1.13.0, 2.0.0, 2.1.0, 2.2.0, 2.3.0, 2.13.0")
    found = pip.read(1, "", text, "", "cp312")
    assert found.kind == "refused"
    assert found.text == (
        "torch==2.14.2 is not available; the newest versions are 2.0.0, 2.1.0, 2.2.0, 2.3.0, 2.13.0"
    )


@pytest.mark.parametrize(
    ("log", "host"),
    [
        (
            "2026-11-02T10:00:00,155   Could not fetch URL https://download.pytorch.org/whl/cu126/"
            "torch/: connection error: HTTPSConnectionPool(host='download.pytorch.org', port=443): "
            "Max retries exceeded with url: /whl/cu126/torch/ (Caused by NewConnectionError("
            "'Failed to establish a new connection: [Errno -2] Name or service not known'))"
            " - skipping\n",
            "download.pytorch.org",
        ),
        (
            "Could not fetch URL https://mirror.example.org/simple/torch/: There was a problem "
            "confirming the ssl certificate: certificate verify failed - skipping\n",
            "mirror.example.org",
        ),
        (
            "Could not fetch URL https://mirror.example.org/simple/torch/: 403 Client Error: "
            "Forbidden for url: https://mirror.example.org/simple/torch/ - skipping\n",
            "mirror.example.org",
        ),
        (
            "WARNING: The repository located at mirror.example.org is not a trusted or secure host"
            " and is being ignored.\n",
            "mirror.example.org",
        ),
    ],
)
def test_an_index_that_pip_could_not_ask_is_no_refusal(log: str, host: str) -> None:
    found = pip.read(1, "", NO_MATCH.format("none"), log, "cp312")
    assert (found.kind, found.host) == ("unreached", host)


def test_a_page_that_is_not_there_is_an_answer() -> None:
    log = "Could not fetch URL https://x.org/torch/: 404 Client Error: Not Found - skipping\n"
    assert pip.read(1, "", NO_MATCH.format("none"), log, "cp312").kind == "refused"


def test_torchs_own_index_forbids_what_it_does_not_have() -> None:
    line = "Could not fetch URL https://download.pytorch.org/whl/cu126/{}/: 403 Client Error: x\n"
    text = NO_MATCH.format("none")
    assert pip.read(1, "", text, line.format("accelerate"), "cp312").kind == "refused"
    assert pip.read(1, "", text, line.format("torch"), "cp312").kind == "unreached"


def test_indexes_that_are_switched_off_are_no_refusal() -> None:
    log = "Ignoring indexes: https://pypi.org/simple\n"
    found = pip.read(1, "", NO_MATCH.format("none"), log, "cp312")
    assert (found.kind, found.text) == (
        "unreached",
        "package indexes are disabled (no-index)",
    )


def test_a_conflict_is_one_sentence() -> None:
    log = """\
2026-11-02T10:00:00,877 The conflict is caused by:
2026-11-02T10:00:00,877     The user requested torch==2.14.1
2026-11-02T10:00:00,877     rival 1.0 depends on torch==2.13.0
2026-11-02T10:00:00,877 \n2026-11-02T10:00:00,877 To fix this you could try to:
"""
    found = pip.read(1, "", "ERROR: ResolutionImpossible: for help visit ...", log, "cp312")
    assert found.text == "torch==2.14.1 is requested and rival 1.0 depends on torch==2.13.0"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("pip 23.2.1 from /usr/lib/python3/dist-packages/pip (python 3.11)", "23.2.1"),
        ("pip 9.0.1 from /x (python 3.6)", "9.0.1"),
        ("No module named pip", "None"),
    ],
)
def test_the_version_of_pip_is_read(text: str, version: str) -> None:
    assert str(pip.version_in(text)) == version


@pytest.mark.parametrize("report", ["", "{", "[]", '{"install": [{}]}', '{"install": 3}'])
def test_a_report_that_cannot_be_read_is_no_answer(report: str) -> None:
    assert pip.read(0, report, "", "", "cp312").kind == "unfit"


# --- sentences ---------------------------------------------------------------------------------


def test_words_of_a_resolver_are_inert_and_short() -> None:
    answer = Answer(kind="refused", text="red \x1b[31m\n  lines " + "very " * 200)
    why = verdict_of(answer, Resolver("uv", "uv", "uv 0.13.9"), Question(first=("torch",))).why
    assert "\x1b" not in why
    assert "\n" not in why
    assert len(why) < 360


def test_a_password_in_a_resolvers_words_is_left_out() -> None:
    why = unverified("error at https://ada:hunter2@mirror.example.org/simple").why
    assert why == "the packages could not be checked: error at https://mirror.example.org/simple"


def test_a_sentence_counts_what_it_does_not_name() -> None:
    files = tuple(File(url="", name=name, version="1") for name in ("zlib", "torch", "numpy"))
    assert (
        resolved(files, "uv 1").why
        == "the packages can be installed together: torch 1 and 2 more (uv 1)"
    )
    assert (
        resolved(files[:1], "uv 1").why == "the packages can be installed together: zlib 1 (uv 1)"
    )
    assert unverified("the Python is not known").why == (
        "the packages could not be checked: the Python is not known"
    )
