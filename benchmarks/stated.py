"""How many facts are read from sentences, and how many from those that deny them.

    python benchmarks/stated.py [--wrong]

Each fact has phrasings in several languages, each language has frames around them: one says that
the author has it, the others that he has not, that somebody else has it, that he only wants it, or
that he had it. A fact must be read from the first and from none of the others. Every third phrasing
and every third frame are set aside: `aside` is the share of those that the reader was not written
by.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import to_builtins

from cudadoctor import knowledge
from cudadoctor.model.machine import Machine
from cudadoctor.reports.reading import read_report

MEANINGS = ("mine", "negated", "other", "wanted", "past")

PHRASINGS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "gpus": (
        ("en", "an RTX 3090", "GeForce RTX 3090"),
        ("en", "a Tesla K40m with torch 2.0", "Tesla K40m"),
        ("en", "2x A100 80G", "NVIDIA A100"),
        ("en", "an RTX5070TI", "GeForce RTX 5070 Ti"),
        ("zh", "显卡 5090", "GeForce RTX 5090"),
        ("ja", "グラボ 4070 Ti", "GeForce RTX 4070 Ti"),
        ("es", "una GTX 1060", "GeForce GTX 1060"),
        ("de", "eine V100 mit PyTorch", "Tesla V100"),
        ("fr", "une carte graphique T4", "Tesla T4"),
        ("ru", "видеокарта 4080", "GeForce RTX 4080"),
        ("ko", "그래픽카드 3080", "GeForce RTX 3080"),
        ("pt", "uma placa de vídeo 4060", "GeForce RTX 4060"),
    ),
    "torch.version": (
        ("en", "PyTorch 2.10", "2.10"),
        ("en", "torch==2.4.1", "2.4.1"),
        ("en", "pytorch-2.1", "2.1"),
        ("en", "torch 2.8 (CUDA 12.9)", "2.8"),
        ("zh", "torch版本2.4.1", "2.4.1"),
        ("ja", "PyTorchのバージョン 2.3.0", "2.3.0"),
        ("es", "la versión 2.2.1 de PyTorch", "2.2.1"),
        ("de", "PyTorch in Version 2.5.1", "2.5.1"),
        ("ru", "PyTorch версии 2.0.1", "2.0.1"),
        ("pt", "o torch na versão 1.13.1", "1.13.1"),
        ("fr", "PyTorch en version 2.6", "2.6"),
        ("ko", "파이토치 2.1.0", "2.1.0"),
    ),
    "torch.cuda": (
        ("en", "torch 2.8 (CUDA 12.9)", "12.9"),
        ("en", "torch 2.10 cu128", "12.8"),
        ("en", "PyTorch 2.1.0 built with CUDA 11.8", "11.8"),
        ("en", "a cu121 build of torch", "12.1"),
        ("zh", "torch 2.4.1+cu118", "11.8"),
        ("en", "torch from the cu128 wheels", "12.8"),
        ("de", "PyTorch 2.5.1 für CUDA 12.4", "12.4"),
        ("es", "PyTorch 2.3.1 con soporte CUDA 12.1", "12.1"),
        ("ja", "PyTorch 2.1（CUDA 11.8版）", "11.8"),
        ("fr", "PyTorch 2.6 compilé pour CUDA 12.6", "12.6"),
    ),
    "driver.reported": (
        ("en", "NVIDIA driver 470.256", "470.256"),
        ("en", "driver 550", "550"),
        ("en", "the 535.183 driver", "535.183"),
        ("zh", "驱动 535.54", "535.54"),
        ("zh", "显卡驱动版本 551.23", "551.23"),
        ("ja", "ドライバー 566.36", "566.36"),
        ("es", "el controlador NVIDIA 525.105", "525.105"),
        ("de", "den Treiber 560.35", "560.35"),
        ("fr", "le pilote 545.29", "545.29"),
        ("ru", "драйвер 572.16", "572.16"),
        ("ko", "드라이버 531.79", "531.79"),
        ("pt", "o driver versão 516.94", "516.94"),
    ),
    "driver.cuda": (
        ("en", "a machine where nvidia-smi says CUDA 12.2", "12.2"),
        ("en", "a box where nvidia-smi shows CUDA Version 11.4", "11.4"),
        ("en", "a driver that supports CUDA up to 12.4", "12.4"),
        ("en", "CUDA 12.8 according to nvidia-smi", "12.8"),
        ("zh", "nvidia-smi 显示 CUDA 12.6 的机器", "12.6"),
        ("zh", "驱动支持的 CUDA 12.1", "12.1"),
        ("de", "CUDA 11.6 laut nvidia-smi", "11.6"),
        ("es", "CUDA 12.3 según nvidia-smi", "12.3"),
        ("fr", "CUDA 12.5 d'après nvidia-smi", "12.5"),
        ("pt", "CUDA 11.2 segundo o nvidia-smi", "11.2"),
    ),
    "python.version": (
        ("en", "Python 3.13", "3.13"),
        ("en", "py3.8", "3.8"),
        ("en", "python3.12.3", "3.12.3"),
        ("en", "Python version 3.10.6", "3.10.6"),
        ("zh", "python版本3.9", "3.9"),
        ("ja", "Pythonのバージョン 3.11", "3.11"),
        ("es", "la versión 3.12 de Python", "3.12"),
        ("de", "Python in Version 3.7", "3.7"),
        ("ru", "питон 3.10", "3.10"),
        ("fr", "Python en version 3.11.9", "3.11.9"),
        ("ko", "파이썬 3.8", "3.8"),
        ("en", "cpython 3.14", "3.14"),
    ),
    "packages.numpy": (
        ("en", "numpy 2.1", "2.1"),
        ("en", "numpy==1.26.4", "1.26.4"),
        ("en", "NumPy version 2.0.2", "2.0.2"),
        ("en", "numpy v1.24.3", "1.24.3"),
        ("zh", "numpy版本1.23.5", "1.23.5"),
        ("ja", "numpyのバージョン 2.2.0", "2.2.0"),
        ("es", "la versión 1.26 de numpy", "1.26"),
        ("de", "NumPy in Version 2.3.1", "2.3.1"),
        ("fr", "numpy en version 1.25.2", "1.25.2"),
        ("pt", "o numpy na versão 2.1.3", "2.1.3"),
    ),
    "packages.transformers": (
        ("en", "transformers 4.30", "4.30"),
        ("en", "transformers==4.41.2", "4.41.2"),
        ("en", "transformers version 4.45.0", "4.45.0"),
        ("en", "transformers v4.38", "4.38"),
        ("zh", "transformers版本4.37.2", "4.37.2"),
        ("ja", "transformersのバージョン 4.40.1", "4.40.1"),
        ("es", "la versión 4.44.2 de transformers", "4.44.2"),
        ("de", "transformers in Version 4.51.3", "4.51.3"),
        ("fr", "transformers en version 4.36.0", "4.36.0"),
        ("pt", "o transformers na versão 4.49.0", "4.49.0"),
    ),
    "packages.flash-attn": (
        ("en", "flash-attn 2.7", "2.7"),
        ("en", "flash-attn==2.5.8", "2.5.8"),
        ("en", "flash_attn version 2.6.3", "2.6.3"),
        ("en", "flash attention 2.3.6", "2.3.6"),
        ("zh", "flash-attn版本2.7.4", "2.7.4"),
        ("ja", "flash-attnのバージョン 2.8.3", "2.8.3"),
        ("es", "la versión 2.4.2 de flash-attn", "2.4.2"),
        ("de", "flash-attn in Version 2.5.9", "2.5.9"),
        ("fr", "flash-attn en version 2.6.1", "2.6.1"),
        ("pt", "o flash-attn na versão 2.7.3", "2.7.3"),
    ),
    "build.toolkits": (
        ("en", "nvcc 11.5", "11.5"),
        ("en", "the CUDA toolkit 11.8", "11.8"),
        ("en", "nvcc from CUDA 12.4", "12.4"),
        ("en", "an nvcc that reports 12.1", "12.1"),
        ("zh", "nvcc版本11.7", "11.7"),
        ("ja", "CUDA Toolkit 12.6", "12.6"),
        ("es", "el toolkit de CUDA 12.3", "12.3"),
        ("de", "das CUDA-Toolkit 11.6", "11.6"),
        ("fr", "nvcc en version 12.2", "12.2"),
        ("pt", "o nvcc versão 10.1", "10.1"),
    ),
    "platform.glibc": (
        ("en", "glibc 2.23", "2.23"),
        ("en", "glibc version 2.17", "2.17"),
        ("en", "glibc-2.28", "2.28"),
        ("en", "GLIBC 2.31", "2.31"),
        ("zh", "glibc版本2.27", "2.27"),
        ("ja", "glibcのバージョン 2.35", "2.35"),
        ("es", "la versión 2.19 de glibc", "2.19"),
        ("de", "glibc in Version 2.26", "2.26"),
        ("fr", "glibc en version 2.24", "2.24"),
        ("pt", "a glibc 2.36", "2.36"),
    ),
    "platform.distro_version": (
        ("en", "Ubuntu 16.04", "16.04"),
        ("en", "CentOS 7", "7"),
        ("en", "ubuntu20.04 LTS", "20.04"),
        ("en", "Debian 11", "11"),
        ("zh", "Ubuntu22.04系统", "22.04"),
        ("ja", "Ubuntu 24.04", "24.04"),
        ("es", "Debian 12", "12"),
        ("de", "RHEL 8", "8"),
        ("fr", "Rocky Linux 9", "9"),
        ("ru", "Ubuntu 18.04", "18.04"),
    ),
    "platform.system": (
        ("en", "Windows 11", "Windows"),
        ("en", "Win10", "Windows"),
        ("en", "a Windows 10 machine", "Windows"),
        ("en", "macOS Sonoma", "Darwin"),
        ("zh", "windows11系统", "Windows"),
        ("ja", "Windows 10", "Windows"),
        ("es", "Windows 11", "Windows"),
        ("de", "Windows 10", "Windows"),
        ("fr", "Windows 11", "Windows"),
        ("ru", "Windows 10", "Windows"),
    ),
    "platform.wsl": (
        ("en", "WSL2", "2"),
        ("en", "WSL 2", "2"),
        ("en", "the Windows Subsystem for Linux", "2"),
        ("zh", "WSL2", "2"),
        ("ja", "WSL2", "2"),
        ("es", "WSL2", "2"),
        ("de", "WSL2", "2"),
        ("fr", "WSL2", "2"),
        ("pt", "WSL2", "2"),
        ("ru", "WSL2", "2"),
    ),
    "container.kind": (
        ("en", "Docker", "docker"),
        ("en", "a docker container", "docker"),
        ("en", "docker compose", "docker"),
        ("zh", "docker 容器", "docker"),
        ("ja", "Docker", "docker"),
        ("es", "Docker", "docker"),
        ("de", "einen Docker-Container", "docker"),
        ("fr", "Docker", "docker"),
        ("pt", "Docker", "docker"),
        ("ru", "Docker", "docker"),
    ),
}
"""Path of a fact -> language, words for it, and the value that stands in the facts."""

FRAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "en": {
        "mine": (
            "I use {x} and every run crashes.",
            "My setup: {x}.",
            "Running with {x} here, training fails.",
        ),
        "negated": (
            "I don't have {x}, so that is not it.",
            "It is not {x} that I use.",
            "This machine has no trace of {x}.",
        ),
        "other": (
            "On my friend's machine with {x} it works.",
            "It works fine on another computer with {x}.",
            "A colleague uses {x} without trouble.",
        ),
        "wanted": (
            "I want to switch to {x} next month.",
            "Should I use {x}?",
            "We are considering {x}.",
        ),
        "past": (
            "I used to have {x}.",
            "Before the upgrade I had {x}.",
            "Previously with {x} all was well.",
        ),
    },
    "es": {
        "mine": ("Tengo {x} y falla.", "Mi equipo: {x}.", "Estoy usando {x}, no arranca."),
        "negated": ("No tengo {x}.", "No uso {x}, por cierto.", "Aquí trabajo sin {x}."),
        "other": (
            "En la máquina de mi amigo con {x} funciona.",
            "En otro ordenador con {x} va bien.",
            "Un compañero tiene {x} y le funciona.",
        ),
        "wanted": (
            "Quiero pasar a {x}.",
            "¿Debería usar {x}?",
            "Estoy pensando en comprar o instalar {x}.",
        ),
        "past": (
            "Antes tenía {x}.",
            "Antes de actualizar usaba {x}.",
            "El año pasado usaba {x}.",
        ),
    },
    "zh": {
        "mine": ("我用的是{x},一运行就报错。", "我的环境:{x}。", "目前使用{x},训练失败。"),
        "negated": ("我没有{x}。", "我用的不是{x}。", "这台机器上并没有{x}。"),
        "other": (
            "在另一台电脑上用{x}可以正常运行。",
            "我朋友的机器是{x},没有问题。",
            "同事用{x}就能跑。",
        ),
        "wanted": ("我想换成{x}。", "我打算用{x}。", "请问是否应该使用{x}?"),
        "past": (
            "我以前用{x}。",
            "升级之前用的是{x}。",
            "之前在{x}上可以。",
        ),
    },
    "ja": {
        "mine": (
            "{x} を使っていますが、エラーになります。",
            "私の環境: {x}",
            "現在は {x} で動かしています。",
        ),
        "negated": ("{x} は持っていません。", "{x} は使っていません。", "{x} ではありません。"),
        "other": (
            "友人のパソコンの {x} では動きます。",
            "別のマシンの {x} では問題ありません。",
            "同僚は {x} を使っています。",
        ),
        "wanted": ("{x} に変えたいです。", "{x} を使う予定です。", "{x} を検討しています。"),
        "past": (
            "以前は {x} を使っていました。",
            "アップグレード前は {x} でした。",
            "昔は {x} でした。",
        ),
    },
    "ko": {
        "mine": ("저는 {x} 사용 중인데 오류가 납니다.", "내 환경: {x}", "현재 {x} 쓰고 있습니다."),
        "negated": ("저는 {x} 없습니다.", "{x} 사용하지 않습니다.", "{x} 아닙니다."),
        "other": (
            "친구 컴퓨터의 {x} 에서는 잘 됩니다.",
            "다른 컴퓨터의 {x} 에서는 정상입니다.",
            "동료는 {x} 씁니다.",
        ),
        "wanted": ("{x} 바꾸고 싶습니다.", "{x} 사용할 계획입니다.", "{x} 고려하고 있습니다."),
        "past": (
            "예전에는 {x} 썼습니다.",
            "업그레이드 전에는 {x} 였습니다.",
            "이전에 {x} 썼습니다.",
        ),
    },
    "de": {
        "mine": (
            "Ich benutze {x} und es stürzt ab.",
            "Mein System: {x}.",
            "Hier läuft alles mit {x}, das Training scheitert.",
        ),
        "negated": ("Ich habe kein {x}.", "Ich verwende nicht {x}.", "Es geht hier ohne {x}."),
        "other": (
            "Auf dem Rechner eines Freundes mit {x} läuft es.",
            "Auf einem anderen PC mit {x} geht es.",
            "Ein Kollege hat {x} und keine Probleme.",
        ),
        "wanted": (
            "Ich möchte auf {x} umsteigen.",
            "Soll ich {x} verwenden?",
            "Ich überlege, {x} zu nehmen.",
        ),
        "past": (
            "Früher hatte ich {x}.",
            "Vor dem Upgrade hatte ich {x}.",
            "Bisher lief es mit {x}.",
        ),
    },
    "fr": {
        "mine": ("J'utilise {x} et ça plante.", "Ma config : {x}.", "Je tourne avec {x}, échec."),
        "negated": ("Je n'ai pas {x}.", "Je n'utilise pas {x}.", "Ici c'est sans {x}."),
        "other": (
            "Sur la machine d'un ami avec {x} ça marche.",
            "Sur un autre PC avec {x} tout va bien.",
            "Mon collègue a {x} sans souci.",
        ),
        "wanted": ("Je veux passer à {x}.", "Dois-je utiliser {x} ?", "J'envisage {x}."),
        "past": (
            "Avant j'avais {x}.",
            "Avant la mise à jour j'avais {x}.",
            "Auparavant j'utilisais {x}.",
        ),
    },
    "pt": {
        "mine": ("Eu uso {x} e dá erro.", "Meu PC: {x}.", "Estou usando {x}, o treino falha."),
        "negated": ("Não tenho {x}.", "Eu não uso {x}.", "Aqui é sem {x}."),
        "other": (
            "No PC do meu amigo com {x} funciona.",
            "Em outra máquina com {x} funciona.",
            "Um colega tem {x} e está tudo bem.",
        ),
        "wanted": ("Quero usar {x}.", "Devo instalar {x}?", "Pretendo mudar para {x}."),
        "past": (
            "Antes eu tinha {x}.",
            "Antes de atualizar eu usava {x}.",
            "Antigamente eu usava {x}.",
        ),
    },
    "ru": {
        "mine": ("У меня {x}, всё падает.", "Моя система: {x}.", "Использую {x}, не работает."),
        "negated": ("У меня нет {x}.", "Я не использую {x}.", "Работаю без {x}."),
        "other": (
            "На компьютере друга с {x} всё работает.",
            "На другом компьютере с {x} работает.",
            "Коллега использует {x}, всё хорошо.",
        ),
        "wanted": ("Хочу перейти на {x}.", "Стоит ли ставить {x}?", "Планирую {x}."),
        "past": (
            "Раньше у меня было {x}.",
            "До обновления было {x}.",
            "Прежде стояло {x}.",
        ),
    },
}
"""Language -> whether the fact holds -> sentences around the words for it."""


class Said(NamedTuple):
    """A sentence, and the fact that it states or, if not `mine`, only names."""

    text: str
    path: str
    value: str
    meaning: str
    aside: bool | None
    """Whether both its phrasing and its frame were set aside; None if one of them was."""


def sentences() -> Iterator[Said]:
    """Every phrasing in every frame of its language."""
    for path, phrasings in PHRASINGS.items():
        for row, (language, words, value) in enumerate(phrasings):
            for meaning, frames in FRAMES[language].items():
                for column, frame in enumerate(frames):
                    aside = (row % 3 == 2, column % 3 == 2)
                    both = aside[0] if aside[0] == aside[1] else None
                    yield Said(frame.format(x=words), path, value, meaning, both)


def values_at(machine: Machine, path: str) -> list[str]:
    """What was read of a fact, each value as text."""
    if path == "gpus":
        return [gpu.name or "" for gpu in machine.gpus or ()]
    if path == "build.toolkits":
        return [str(toolkit.cuda) for toolkit in machine.build.toolkits or ()]
    if path.startswith("packages."):
        name = path.partition(".")[2]
        return [found.version for found in machine.packages or () if found.name == name]
    value: object = to_builtins(machine, enc_hook=str)
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return [] if value is None else [str(value)]


def is_right(said: Said) -> bool:
    """Whether the fact is read where it is stated, and only there."""
    read = values_at(read_report(said.text, knowledge.load()), said.path)
    if said.path == "gpus":
        return any(said.value.lower() in name.lower() for name in read) == (said.meaning == "mine")
    return (said.value in read) == (said.meaning == "mine")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrong", action="store_true", help="name those that are read wrongly")
    asked = parser.parse_args()
    told = [(said, is_right(said)) for said in sentences()]
    shares: dict[str, object] = {}
    for name, aside in (("written_by", False), ("aside", True), ("mixed", None)):
        for meaning in MEANINGS:
            rights = [ok for said, ok in told if (said.aside, said.meaning) == (aside, meaning)]
            shares[f"{name} {meaning}"] = f"{sum(rights)}/{len(rights)}"
    for said, ok in told if asked.wrong else ():
        if not ok and said.aside is False:
            print(f"{said.meaning:8} {said.path:24} {said.value:16} {said.text}")
    print(json.dumps(shares, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
