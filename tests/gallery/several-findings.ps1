# cudadoctor 0.0.0, knowledge of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: CUDA_VISIBLE_DEVICES="" hides every GPU
#   CUDA shows a program only the GPUs in this list, so torch sees 0 of 1. nvidia-smi ignores
#   the variable and shows them all.
#
# warning: The open-file limit is 256 (ulimit -n)
#   DataLoader workers pass tensors as open files. With fewer than 1024 they soon stop with "Too
#   many open files".
#
$ErrorActionPreference = 'Stop'

# 1. Unset CUDA_VISIBLE_DEVICES (this shell only)
#    To remove it for good, find its line with `grep -n CUDA_VISIBLE_DEVICES ~/.bashrc
#    ~/.profile ~/.zshrc /etc/environment` and delete it.
#    Type this in your own shell too: a script cannot:
Remove-Item Env:CUDA_VISIBLE_DEVICES -ErrorAction SilentlyContinue

# 2. Raise the limit in this shell (this shell only)
#    Start your program in the same shell. In a batch job, put the line in the script. If the
#    shell refuses, its hard limit is lower; raise the limit permanently instead.
#      & 'ulimit' '-n' '65536'
# Or: Raise the limit permanently (needs root)
#    Log out and in again. A systemd service needs `LimitNOFILE=65536` in its unit.
#      Set-Content -LiteralPath '/etc/security/limits.d/90-nofile.conf' -Value 'ada soft nofile 65536', 'ada hard nofile 1048576'

# Then check again:
#    & 'cudadoctor' 'check' '--python' '/home/ada/venv/bin/python'

Write-Output 'Raise the limit in this shell (this shell only):'
Write-Output '  & ''ulimit'' ''-n'' ''65536'''
exit 1
