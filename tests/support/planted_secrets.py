"""Secrets of every kind, and machines that hold them in every text."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from cudadoctor.model import factfile
from cudadoctor.model.machine import Gap, Machine

USER = "zoe.o-hara_9"
OTHER = "balder"
HOST = "asgard42"
FQDN = f"{HOST}.cluster.example.edu"
GPU = "GPU-5ec12e7a-0bad-4ace-8f00-d15ea5ed0001"
MIG = "MIG-5ec12e7a-1bad-5ace-9f00-d15ea5ed0002"


class Planted(NamedTuple):
    """A text as the world writes it, and the parts of it that nobody else may read."""

    text: str
    secrets: tuple[str, ...]


def planted(text: str, *secrets: str) -> Planted:
    assert all(secret in text for secret in secrets), (text, secrets)
    return Planted(text, secrets)


TOKENS = (
    planted("OSError: 401 for token hf_QwErTyUiOpAsDfGhJkLz12345", "hf_QwErTyUiOpAsDfGhJkLz12345"),
    planted("repo at hf_abcdefghijklmnopqrstuvwx is gated", "hf_abcdefghijklmnopqrstuvwx"),
    planted("remote: ghp_0123456789abcdefghijABCDEFGHIJ012345", "ghp_0123456789abcdef"),
    planted("github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz", "11ABCDEFG0abcdefghijkl"),
    planted("key sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12", "Ab12Cd34Ef56Gh78"),
    planted("aws said no to AKIAIOSFODNN7PLANTED", "AKIAIOSFODNN7PLANTED"),
    planted("clone with glpat-xYz12345678901234567 failed", "xYz12345678901234567"),
    planted(
        "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4", "SflKxwRJSMeKKF2QT4"
    ),
    planted("slack xoxb-123456789012-abcdefGHIJ", "123456789012-abcdefGHIJ"),
    planted("NGC nvapi-AbCdEfGhIjKlMnOpQrStUv123", "AbCdEfGhIjKlMnOpQrStUv123"),
    planted("pypi-AgEIcHlwaS5vcmcCJDplanted12345", "AgEIcHlwaS5vcmcCJDplanted12345"),
    planted("header Authorization: Bearer q1w2e3r4t5y6u7i8", "q1w2e3r4t5y6u7i8"),
    planted("channel https://conda.example.com/t/ab-12345678-cdef/private", "ab-12345678-cdef"),
)
ASSIGNED = (
    planted("env HF_TOKEN=plantedTokenValue1", "plantedTokenValue1"),
    planted("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123"),
    planted("export AWS_SECRET_ACCESS_KEY='wJalrXUtnFEMI/K7MDENG/pLaNtEd'", "wJalrXUtnFEMI"),
    planted("DB_PASSWORD=hunter2222!", "hunter2222!"),
    planted('{"password": "correct horse battery"}', "correct horse", "battery"),
    planted("password: swordfishplanted", "swordfishplanted"),
    planted("train.py --hf-token zzTopPlanted99 --lr 1", "zzTopPlanted99"),
    planted("mysql --password opensesame77 db", "opensesame77"),
    planted("GITHUB_TOKEN=gh0planted0value", "gh0planted0value"),
)
ADDRESSES_OF_INDEXES = (
    planted("https://loki:tr1ckster@pypi.example.org/simple", "loki", "tr1ckster"),
    planted("https://loki:p@ss@w0rdx@pypi.example.org/simple", "loki", "p@ss", "w0rdx"),
    planted("https://loki:sl/ash3d@pypi.example.org/simple", "loki", "sl/ash3d"),
    planted("https://t0kenonly4@pypi.example.org/simple", "t0kenonly4"),
    planted("http_proxy=http://proxyuser:proxypw1@proxy.example.org:3128", "proxyuser", "proxypw1"),
    planted("GET https://x.example.org/simple?token=qu3ryT0ken&a=1", "qu3ryT0ken"),
    planted("GET https://x.example.org/?X-Amz-Signature=deadbeefcafe1234", "deadbeefcafe1234"),
)
PEOPLE = (
    planted(f'  File "/home/{OTHER}/train.py", line 3, in <module>', OTHER),
    planted(f"/Users/{OTHER}/venv/bin/python: not found", OTHER),
    planted(f"C:\\Users\\{OTHER}\\venv\\Scripts\\python.exe", OTHER),
    planted(r"C:\Users\Freya Vanir\AppData\Local\Temp\x.py", "Freya", "Vanir"),
    planted(r"'C:\\Users\\Idun\\x.py'", "Idun"),
    planted(r"(venv) PS C:\Users\Idun> python train.py", "Idun"),
    planted("/mnt/c/Users/Heimdall/x /export/home/heimdall/y", "Heimdall", "heimdall"),
    planted("file:///home/baldur2/wheels/x.whl", "baldur2"),
    planted(f"{OTHER}@valhalla7:~/proj$ python train.py", OTHER, "valhalla7"),
    planted("(venv) sif@bifrost9:/data/run# nvidia-smi", "sif@", "bifrost9"),
    planted("[hodur@muspell3 job]$ srun x", "hodur", "muspell3"),
    planted("skadi@niflheim ~ % python3 -c 'import torch'", "skadi", "niflheim"),
    planted("root@3f2a9c1b7d5e:/workspace# python x.py", "3f2a9c1b7d5e"),
    planted("ssh njord@noatun5 nvidia-smi", "njord", "noatun5"),
    planted("scp bragi@asgard-gw:/srv/data/x.pt .", "bragi", "asgard-gw"),
    planted("contact tyr.hand@mail.example.edu for help", "tyr.hand", "mail.example.edu"),
    planted("uid=1000(vidarr) gid=1000(vidarr) groups=1000(vidarr)", "vidarr"),
)
HOSTS = (
    planted(
        "ymir01:123:456 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>", "ymir01", "10.1.2.3"
    ),
    planted("ymir02.dc.example.edu:77:78:79 [3] NCCL WARN timeout", "ymir02"),
    planted("Nov 21 10:00:01 ymir03 kernel: NVRM: Xid (PCI:0000:41:00): 79", "ymir03"),
    planted("Linux ymir04 6.8.0-87-generic #88-Ubuntu SMP x86_64 GNU/Linux", "ymir04"),
    planted("  host      : ymir05.dc.example.edu", "ymir05"),
    planted("srun: error: ymir06: task 0: Exited with exit code 1", "ymir06"),
    planted("failed to connect to [ymir07.dc.example.edu]:29500", "ymir07"),
    planted("connect to 10.77.66.55:29500 timed out; peer 10.77.66.54 closed", "10.77.66.5"),
    planted("bind 192.168.13.37 failed, inet 172.20.1.9/16", "192.168.13.37", "172.20.1.9"),
    planted("socket fe80::1ff:fe23:4567:890a%eth0 [2001:db8:1::7]:29500", "fe23:4567", "db8:1::7"),
    planted("ether 52:54:00:ab:cd:ef, DEV 52-54-00-AB-CD-EE", "52:54:00:ab", "52-54-00-AB"),
    planted("interface enx0242ac110002 is down", "0242ac110002"),
    planted("node ip-10-20-30-40.ec2.internal left", "10-20-30-40"),
    planted("pod uid 123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b"),
    planted("cgroup /docker/" + "0a1b2c3d" * 8, "0a1b2c3d"),
    planted("Serial Number : 1652123004567", "1652123004567"),
    planted(f"{GPU} fell off the bus, {MIG} too", GPU[4:], MIG[4:], "5ec12e7a"),
)
ALL = (*TOKENS, *ASSIGNED, *ADDRESSES_OF_INDEXES, *PEOPLE, *HOSTS)
OWN = (USER, HOST, "cluster.example.edu", GPU[4:], MIG[4:])
"""What the machine's own identity holds."""
VARIABLES = {
    "HF_TOKEN": planted("anythingAtAll", "anythingAtAll"),
    "WANDB_API_KEY": planted("0f1e2d3c4b5a69788796a5b4c3d2e1f001234567", "0f1e2d3c4b5a"),
    "AWS_SECRET_ACCESS_KEY": planted("wJalrPlantedSecret/42", "wJalrPlantedSecret"),
    "AWS_ACCESS_KEY_ID": planted("AKIAPLANTEDPLANTED11", "AKIAPLANTED"),
    "GITHUB_TOKEN": planted("ghx-not-of-the-usual-form", "not-of-the-usual"),
    "PGPASSWORD": planted("pgpassplanted", "pgpassplanted"),
    "PIP_INDEX_URL": planted("https://u5er:pa55@pypi.example.org/simple", "u5er", "pa55"),
    "UV_INDEX": planted("corp=https://u6er:pa66@uv.example.org/simple", "u6er", "pa66"),
    "HTTPS_PROXY": planted("http://u7er:pa77@proxy.example.org:3128", "u7er", "pa77"),
    "CXX": planted(
        'ccache g++ -DPW=cxxplanted1 -D KEY="two planted2" -O2', "cxxplanted1", "planted2"
    ),
    "CC": planted("PW=ccplanted3 gcc", "ccplanted3"),
    "CUDAHOSTCXX": planted("'-DPW=planted4 and planted5' g++", "planted4", "planted5"),
    "NVCC_PREPEND_FLAGS": planted("-DPW=planted6' -arch=sm_89", "planted6"),
    "NVCC_APPEND_FLAGS": planted("--define-macro=PW=planted7 -std=c++17", "planted7"),
    "MASTER_ADDR": planted("surtr1.dc.example.edu", "surtr1"),
    "SLURM_JOB_NODELIST": planted("surtr[2-9]", "surtr[2-9]"),
    "SLURM_JOB_USER": planted("ullr", "ullr"),
    "NCCL_COMM_ID": planted("10.20.30.41:5000", "10.20.30.41"),
    "NCCL_SOCKET_IFNAME": planted("enx0242ac110007", "0242ac110007"),
    "TORCH_HOME": planted("/home/thrud/.cache/torch", "thrud"),
    "LD_LIBRARY_PATH": planted(f"/home/{USER}/lib:/scratch/{USER}/cuda", USER),
}


def moved(machine: Machine) -> Machine:
    """The machine of another user, under another name, with the same facts."""
    plain = factfile.encode(machine)
    text = json.dumps(plain)
    home = plain.get("identity", {}).get("home") or "/home/ada"
    was = home.replace("\\", "/").rpartition("/")[2]
    if was != "root":
        for mark in ("/", "\\\\"):
            text = text.replace(f"{mark}{was}{mark}", f"{mark}{USER}{mark}")
            text = text.replace(f'{mark}{was}"', f'{mark}{USER}"')
    for number, gpu in enumerate(plain.get("gpus") or ()):
        if gpu.get("uuid"):
            text = text.replace(gpu["uuid"], f"{GPU[:-2]}{number:02d}")
    data = json.loads(text)
    data["identity"] = {"home": data.get("identity", {}).get("home"), "user": USER, "host": HOST}
    return factfile.from_plain(data)


def with_texts(machine: Machine, texts: tuple[str, ...]) -> Machine:
    """The machine with these texts as errors and logs, and with the variables that hold secrets."""
    data: dict[str, Any] = json.loads(factfile.dumps(machine))
    env = data.get("env") or {}
    variables = {name: variable.text for name, variable in VARIABLES.items() if name not in env}
    data["env"] = variables | env
    whole = "\n".join(texts)
    data["driver"] = data.get("driver", {}) | {"log": [*data["driver"].get("log", []), *texts]}
    gaps = [{"fact": "limits.interfaces", "why": text, "asked": False} for text in texts]
    data["gaps"] = [*data.get("gaps", []), *gaps]
    data["symptoms"] = [*(data.get("symptoms") or []), {"key": "planted", "text": whole}]
    data.setdefault("origins", {})["limits.shm_bytes"] = texts[-1]
    for section in ("nvml", "libcuda"):
        if "why" in data["driver"].get(section, {}):
            data["driver"][section]["why"] += whole
    imported = data.get("torch", {}).get("imported")
    for name in ("error", "cuda_error", "numpy_error"):
        if imported and imported.get(name):
            imported[name] += " " + whole
    for stage in (data.get("smoke") or {}).get("stages", []):
        stage["detail"] = (stage.get("detail") or "") + " " + whole
    return factfile.from_plain(data)


def gaps_of(*texts: str) -> tuple[Gap, ...]:
    return tuple(Gap(fact="driver.log", why=text) for text in texts)


def all_secrets() -> tuple[str, ...]:
    """Everything that must not appear in any output."""
    found = [*OWN, *(secret for each in ALL for secret in each.secrets)]
    found += [secret for each in VARIABLES.values() for secret in each.secrets]
    return tuple(dict.fromkeys(found))


def leaked(text: str) -> list[str]:
    """The secrets that appear in a text."""
    return [secret for secret in all_secrets() if secret in text]
