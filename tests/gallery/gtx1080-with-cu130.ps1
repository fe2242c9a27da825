# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: torch 2.14.1+cu130 was not built for your GTX 1080
#   Your GTX 1080 is sm_61; this build contains only sm_75 to sm_120. Kernels fail with "no
#   kernel image is available for execution on the device".
#
$ErrorActionPreference = 'Stop'

# This runs in an empty folder so that Python does not import files from the current one.
$HERE = (Get-Location).Path
$empty = Join-Path ([IO.Path]::GetTempPath()) (New-Guid)
$null = New-Item -ItemType Directory $empty; Set-Location $empty

# 1. Install the cu126 build of torch 2.14.1 (changes this environment)
#    You can keep torch 2.14.1: its cu126 build is compatible with this machine.
#    The default build (cu130) is not compatible: it has no code for compute capability 6.1.
& '/home/ada/venv/bin/python' '-m' 'pip' 'uninstall' '-y' 'torch'; if ($LASTEXITCODE) { exit $LASTEXITCODE }
& '/home/ada/venv/bin/python' '-m' 'pip' 'install' 'torch==2.14.1' '--index-url' 'https://download.pytorch.org/whl/cu126'; if ($LASTEXITCODE) { exit $LASTEXITCODE }

# Then check again:
#    & 'cudadoctor' 'check' '--python' '/home/ada/venv/bin/python'
